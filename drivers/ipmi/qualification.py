"""What a BMC can do, found by reading only: each operation with the answer that says so."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.commands import Command, completion_text
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.handshake import Privilege
from protocol.operations import OPERATIONS
from protocol.shapes.management import OperationSupport, Support

__all__ = ["qualify"]


@dataclass(frozen=True, slots=True)
class _Probe:
    """A command whose answer shows whether an operation works; `privilege` is what the operation itself needs."""

    command: Command
    privilege: Privilege = Privilege.USER
    certain: bool = True
    """False: the answer makes the operation likely, and only doing it would prove it."""
    optional: bool = False
    """The command need not be there for the operation to work: its refusal proves nothing."""


_FLAGS: Final = commands.GET_BOOT_OPTIONS.with_data(b"\x05\x00\x00")
_SOL_ENABLED: Final = commands.GET_SOL_CONFIGURATION.with_data(b"\x0e\x01\x00\x00")
_PROBES: Final[dict[str, _Probe]] = {
    "power.getPower": _Probe(commands.GET_CHASSIS_STATUS),
    "power.setPower": _Probe(commands.GET_CHASSIS_STATUS, Privilege.OPERATOR),
    "management.getInfo": _Probe(commands.GET_DEVICE_ID),
    "management.getHealth": _Probe(commands.GET_CHASSIS_STATUS),
    "management.getSensors": _Probe(commands.GET_SDR_REPOSITORY_INFO),
    "management.getEventLog": _Probe(commands.GET_SEL_INFO),
    "management.clearEventLog": _Probe(commands.GET_SEL_INFO, Privilege.OPERATOR),
    "management.setIndicator": _Probe(commands.GET_CHASSIS_STATUS, Privilege.OPERATOR, certain=False),
    "management.getIndicator": _Probe(commands.GET_CHASSIS_STATUS),
    "management.resetBmc": _Probe(commands.GET_DEVICE_ID, Privilege.ADMINISTRATOR, certain=False),
    "management.qualify": _Probe(commands.GET_DEVICE_ID),
    "boot.getBoot": _Probe(_FLAGS, Privilege.OPERATOR),
    "boot.setBootDevice": _Probe(_FLAGS, Privilege.OPERATOR),
    "inspect.getInventory": _Probe(commands.GET_DEVICE_ID),
    "config.rotatePassword": _Probe(
        commands.GET_USER_ACCESS.with_data(b"\x0e\x01"), Privilege.ADMINISTRATOR, certain=False
    ),
    "console.getConsole": _Probe(commands.GET_DEVICE_ID),
    "console.openConsole": _Probe(_SOL_ENABLED, certain=False, optional=True),
    "console.closeConsole": _Probe(_SOL_ENABLED, certain=False, optional=True),
}
_IDENTIFY_KNOWN: Final = 0x40


async def qualify(connection: IpmiConnection, own: Collection[str], call: Call) -> list[OperationSupport]:
    """Every operation of the table, in its order; `own` are those that the driver has.

    Raises OperationError where the BMC cannot be spoken to.
    """
    answers: dict[str, tuple[int, bytes]] = {}
    operations = []
    for identifier in OPERATIONS:
        probe = _PROBES.get(identifier) if identifier in own else None
        if probe is None:
            support, evidence = Support.UNSUPPORTED, "this driver does not have it"
        else:
            command = probe.command
            if command.name not in answers:
                answer = await connection.ask(command, call)
                answers[command.name] = (answer.completion_code, answer.data)
            support, evidence = _judge(identifier, probe, *answers[command.name], connection.privilege)
        operations.append(OperationSupport(operation=identifier, support=support, evidence=evidence))
    return operations


def _judge(
    identifier: str, probe: _Probe, code: int, data: bytes, privilege: Privilege | None
) -> tuple[Support, str]:
    """What one answer says of one operation."""
    name = probe.command.name
    if code:
        text = f"{name} answered completion code {code:#04x} ({completion_text(probe.command, code)})"
        never = code in (0x80, 0xC1, 0xC2, 0xC9, 0xCC, 0xCD, 0xD6)
        return Support.UNSUPPORTED if never and not probe.optional else Support.UNKNOWN, text
    if privilege is not None and privilege < probe.privilege:
        needed = f"it needs the {probe.privilege.name} privilege; the session has {privilege.name}"
        return Support.UNSUPPORTED, f"{name} answered, and {needed}"
    if identifier == "management.getIndicator" and not (len(data) > 2 and data[2] & _IDENTIFY_KNOWN):
        return Support.UNSUPPORTED, f"{name} answered without the identify state (bit 6 of byte 3 is clear)"
    if identifier == "management.setIndicator" and len(data) > 2 and data[2] & _IDENTIFY_KNOWN:
        return Support.SUPPORTED, f"{name} answered with the identify state"
    if probe.command is _SOL_ENABLED and len(data) > 1 and not data[1] & 1:
        return Support.UNSUPPORTED, f"{name} answered: serial over LAN is switched off"
    if not probe.certain:
        return Support.UNKNOWN, f"{name} answered; only doing it would show whether the BMC takes it"
    return Support.SUPPORTED, f"{name} answered"
