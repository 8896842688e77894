"""How each operation of the IPMI driver ends at OpenIPMI's `ipmi_sim`; `test_peer.py` holds it against that one."""

from tests.drivers.ends import Ends, refuses, shows

__all__ = ["BY_TESTS_OF_THEIR_OWN", "IPMI_SIM"]

BY_TESTS_OF_THEIR_OWN = frozenset({"console.openConsole", "console.closeConsole", "config.rotatePassword"})
"""A console needs a serial port behind the peer, and a rotation its own accounts: `test_console_peer.py`,
`test_rotate_password.py`."""

IPMI_SIM: dict[str, Ends] = {
    "power.getPower": shows(state="off"),
    "power.setPower": shows({"action": "on"}, state="on", changed=True),
    "management.getInfo": shows(vendor="ACME", model="SIMBOARD", serial="SN0001", bmcVersion="9.08"),
    "management.getHealth": shows(rollup="ok"),
    "management.getSensors": shows(),
    "management.getEventLog": shows(entries=[]),
    "management.clearEventLog": shows(cleared=True),
    "management.setIndicator": shows({"state": "on"}, state="on"),
    "management.getIndicator": shows(state=None),
    "management.resetBmc": refuses(words="0xc1"),
    "management.qualify": shows(),
    "boot.getBoot": shows(target="none", enabled="disabled"),
    "boot.setBootDevice": shows({"device": "pxe", "mode": "bios"}, target="pxe", mode="bios"),
    "console.getConsole": shows(kinds=["sol"]),
    "console.openConsole": shows(),
    "console.closeConsole": shows({"stream": "none"}, closed=False),
    "inspect.getInventory": shows(),
    "config.rotatePassword": shows({"user": "admin", "newCredentialRef": "new"}),
}
