"""Commands about the BMC itself (IPMI 2.0, chapter 20)."""

from simulators.ipmi.commands.registry import Call, Command, CommandTable, Refused
from simulators.ipmi.constants import CompletionCode, NetFn, Privilege

_PROVIDES_SDRS = 0x80
_IPMI_2_0 = 0x02
# Chassis, FRU inventory, SEL, SDR repository, sensors.
_DEVICE_SUPPORT = 0x8F


def _device_id(call: Call) -> bytes:
    identity = call.bmc.identity
    minor = identity.firmware_minor
    return (
        bytes((0x20, _PROVIDES_SDRS | 0x01, identity.firmware_major & 0x7F, minor // 10 << 4 | minor % 10))
        + bytes((_IPMI_2_0, _DEVICE_SUPPORT))
        + identity.manufacturer.to_bytes(3, "little")
        + identity.product.to_bytes(2, "little")
        + bytes(4)
    )


def _cold_reset(call: Call) -> bytes:
    call.bmc.restart_after_answer()
    return b""


def _self_test(call: Call) -> bytes:
    return b"\x55\x00"


def _set_acpi_state(call: Call) -> bytes:
    system, device = call.data
    present_system, present_device = call.bmc.acpi_state
    if system & 0x80 and system & 0x7F != 0x7F:
        present_system = system & 0x7F
    if device & 0x80 and device & 0x7F != 0x7F:
        present_device = device & 0x7F
    call.bmc.acpi_state = (present_system, present_device)
    return b""


def _get_acpi_state(call: Call) -> bytes:
    system, device = call.bmc.acpi_state
    return bytes((system if call.bmc.machine.is_on else 0x05, device))


def _guid(call: Call) -> bytes:
    return call.bmc.identity.guid


def _set_global_enables(call: Call) -> bytes:
    call.bmc.global_enables = call.data[0]
    return b""


def _get_global_enables(call: Call) -> bytes:
    return bytes((call.bmc.global_enables,))


def _reset_watchdog(call: Call) -> bytes:
    raise Refused(0x80)


def _get_watchdog(call: Call) -> bytes:
    return bytes(8)


def _get_system_info(call: Call) -> bytes:
    parameter, block = call.data[1], call.data[2]
    if parameter == 0:
        return b"\x11\x00"
    text = call.bmc.identity.system_info.get(parameter)
    if text is None:
        raise Refused(0x80)
    first_block = bytes((0x00, len(text)))
    blocks = first_block + text.encode("ascii")
    part = blocks[16 * block : 16 * block + 16]
    if not part:
        raise Refused(CompletionCode.PARAMETER_OUT_OF_RANGE)
    return bytes((0x11, block)) + part.ljust(16, b"\0")


COMMANDS: CommandTable = {
    (NetFn.APP, 0x01): Command(_device_id),
    (NetFn.APP, 0x02): Command(_cold_reset, Privilege.ADMINISTRATOR),
    (NetFn.APP, 0x03): Command(_cold_reset, Privilege.ADMINISTRATOR),
    (NetFn.APP, 0x04): Command(_self_test),
    (NetFn.APP, 0x06): Command(_set_acpi_state, Privilege.ADMINISTRATOR, 2),
    (NetFn.APP, 0x07): Command(_get_acpi_state),
    (NetFn.APP, 0x08): Command(_guid),
    (NetFn.APP, 0x22): Command(_reset_watchdog, Privilege.OPERATOR),
    (NetFn.APP, 0x25): Command(_get_watchdog),
    (NetFn.APP, 0x2E): Command(_set_global_enables, Privilege.ADMINISTRATOR, 1),
    (NetFn.APP, 0x2F): Command(_get_global_enables),
    (NetFn.APP, 0x37): Command(_guid, Privilege.NONE),
    (NetFn.APP, 0x59): Command(_get_system_info, Privilege.USER, 4),
}
