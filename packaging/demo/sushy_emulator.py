"""Redfish BMCs by sushy-tools' emulator with its fake machines, which take 1 to 11 seconds for a change of power.

One emulator for each BMC: the machines of one emulator share a Redfish service, which real servers do not.
"""

import re
import uuid
from collections.abc import Callable
from pathlib import Path

from bmc import Bmc, BmcProtocol, Login
from children import Child, Children
from redfish_witness import RedfishWitness
from workspace import Workspace

__all__ = ["find_emulator", "start"]

_PEERS = Path(__file__).resolve().parents[2] / ".peers" / "bin"


def find_emulator() -> Path | None:
    """The emulator in the venv of peers."""
    program = _PEERS / "sushy-emulator"
    return program if program.exists() else None


def start(
    program: Path, children: Children, workspace: Workspace, names: list[str], login: Login
) -> Callable[[], list[Bmc]]:
    """An emulator for each name, over plain HTTP on loopback; it takes any login."""
    started = [_start_one(program, children, workspace, name, login) for name in names]
    return lambda: [serving() for serving in started]


def _start_one(program: Path, children: Children, workspace: Workspace, name: str, login: Login) -> Callable[[], Bmc]:
    state = workspace.make_folder(f"sushy-{name}")
    config = state / "emulator.conf"
    machine = {"uuid": str(uuid.uuid4()), "name": name, "power_state": "Off", "external_notifier": False, "nics": []}
    settings = {
        "SUSHY_EMULATOR_STATE_DIR": str(state),
        "SUSHY_EMULATOR_FAKE_SYSTEMS": [machine],
    }
    config.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    port = workspace.free_port()
    words = [str(program), "--fake", "--config", str(config), "--interface", workspace.address, "--port", str(port)]
    child = children.start(f"sushy-{name}", words)
    address = f"http://{workspace.address}:{port}"
    witness = RedfishWitness(address, login, lambda _get: _orders_taken(child))

    def serving() -> Bmc:
        child.wait_until("does not answer", lambda: witness.get("/redfish/v1/Systems"))
        return Bmc(name, "sushy-tools' emulator", BmcProtocol.REDFISH, address, login, witness)

    return serving


def _orders_taken(child: Child) -> int:
    """Orders of the power that the emulator took, by its log of requests; it does not log of which kind they were."""
    return len(re.findall(r'"POST /redfish/v1/Systems/\S+/Actions/ComputerSystem\.Reset HTTP/1\.\d" 2', child.said()))
