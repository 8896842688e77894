"""An IPMI BMC by OpenIPMI's `ipmi_sim`, which speaks cipher suite 3 and leaves the machine to a script of ours."""

import socket
from collections.abc import Callable

from bmc import USER, Bmc, BmcProtocol, Login, Witness
from children import Children
from ipmi_witness import ChassisFiles, IpmitoolWitness
from workspace import Workspace

__all__ = ["SUITE", "start"]

SUITE = 3
_BMC = 0x20

# Called with the BMC's address, then `get NAME…` or `set NAME VALUE…`; keeps each value in a file of that name.
_CHASSIS_SCRIPT = """\
#!/bin/sh
cd '{folder}' || exit 1
echo "$*" >>calls
action=$2
shift 2
case $action in
get)
    for name in "$@"; do
        echo "$name:$(cat "$name" 2>/dev/null || echo 0)"
    done
    ;;
set)
    while [ $# -gt 1 ]; do
        echo "$2" >"$1"
        shift 2
    done
    ;;
esac
"""

_LAN = """\
name "{name}"
set_working_mc {bmc:#x}
  startlan 1
    addr {host} {port}
    priv_limit admin
    allowed_auths_admin none md2 md5 straight
    guid {guid}
  endlan
  chassis_control "{script} {bmc:#x}"
  user 2 true "{user}" "{password}" admin 10 none md2 md5 straight
"""

# A management controller with an event log and no sensors.
_MACHINE = """\
mc_setbmc {bmc:#x}
mc_add {bmc:#x} 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable {bmc:#x} 1000 0x0a
mc_enable {bmc:#x}
"""


def start(
    program: str, children: Children, workspace: Workspace, name: str, login: Login, ipmitool: str | None
) -> Callable[[], Bmc]:
    """The BMC of a machine that is off. Call what is returned to wait until it answers."""
    state = workspace.make_folder(f"ipmi_sim-{name}")
    (state / "power").write_text("0\n")
    (state / "boot").write_text("default\n")
    script = state / "chassis"
    script.write_text(_CHASSIS_SCRIPT.format(folder=state))
    script.chmod(0o700)
    machine = state / "machine.emu"
    machine.write_text(_MACHINE.format(bmc=_BMC))
    port = workspace.free_port(kind=socket.SOCK_DGRAM)
    lan = workspace.secret_file(
        "ipmi_sim.conf",
        _LAN.format(
            name=name,
            bmc=_BMC,
            host=workspace.address,
            port=port,
            guid="00112233445566778899aabbccddeeff",
            script=script,
            user=USER,
            password=login.password,
        ),
    )
    words = [program, "-c", str(lan), "-f", str(machine), "-s", str(workspace.make_folder(f"ipmi_sim-{name}-db"))]
    # With its standard input closed it would end.
    child = children.start(f"ipmi_sim-{name}", [*words, "-p", "-n"], open_stdin=True)
    files = ChassisFiles(state)
    witness: Witness = files
    if ipmitool is not None:
        witness = IpmitoolWitness(ipmitool, workspace.address, port, login, SUITE, lambda _ask: files.resets())

    def serving() -> Bmc:
        child.wait_until("does not answer", lambda: True if _pong(workspace.address, port) else None)
        return Bmc(name, "OpenIPMI ipmi_sim", BmcProtocol.IPMI, f"ipmi://{workspace.address}:{port}", login, witness)

    return serving


def _pong(host: str, port: int) -> bool:
    """Whether an RMCP presence ping (ASF 2.0, 3.2.4.2) is answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.2)
        client.connect((host, port))
        client.send(bytes.fromhex("0600ff06000011be80000000"))
        return bool(client.recv(64))
