"""Power and boot options: what the machine does, and what the BMC says about it."""

import pytest

from simulators.ipmi import BootDevice, ChassisControl, PowerTiming
from simulators.ipmi.boot_options import BootOverride
from simulators.ipmi.constants import RestartCause
from tests.simulators.ipmi_remote_console import Clock, RemoteConsole, make_bmc

DOWN, UP, CYCLE, RESET, DIAG, SOFT = (bytes((number,)) for number in range(6))
PXE_UEFI_ONCE = b"\x05\xa0\x04\x00\x00\x00"


def administrator(clock: Clock | None = None, **options: object) -> RemoteConsole:
    """A session at administrator level."""
    console = RemoteConsole(make_bmc(clock, **options)).open()
    assert console.send(6, 0x3B, b"\x04") == b"\x00\x04"
    return console


def control(console: RemoteConsole, action: bytes) -> int:
    """Order something; gives the completion code."""
    return console.send(0, 0x02, action)[0]


def power_is_on(console: RemoteConsole) -> bool:
    """The power state as Get Chassis Status tells it."""
    return bool(console.send(0, 0x01)[1] & 1)


def boot_flags(console: RemoteConsole) -> bytes:
    """The five bytes of parameter 5."""
    return console.send(0, 0x09, b"\x05\x00\x00")[3:]


def test_down_and_up_change_the_power_and_are_idempotent() -> None:
    console = administrator()
    for action, state in ((DOWN, False), (DOWN, False), (UP, True), (UP, True)):
        assert control(console, action) == 0
        assert power_is_on(console) is state
    assert len(console.bmc.machine.boots) == 1, "up when on starts nothing"


@pytest.mark.parametrize("action", [CYCLE, RESET, DIAG, SOFT])
def test_what_needs_a_running_machine_is_d5_while_it_is_off(action: bytes) -> None:
    console = administrator(powered=False)
    assert control(console, action) == 0xD5
    (order,) = console.bmc.machine.orders
    assert not order.accepted
    assert not power_is_on(console)


def test_a_cycle_goes_through_off_and_boots_once() -> None:
    clock = Clock()
    console = administrator(clock, timing=PowerTiming(power_off=1, cycle_interval=3, power_on=2))
    assert control(console, CYCLE) == 0
    assert power_is_on(console)
    clock.pass_(1)
    assert not power_is_on(console)
    clock.pass_(4.9)
    assert not power_is_on(console)
    clock.pass_(0.1)
    assert power_is_on(console)
    assert len(console.bmc.machine.boots) == 1


def test_a_reset_boots_once_and_is_counted() -> None:
    console = administrator()
    assert control(console, RESET) == 0
    assert console.bmc.machine.count(ChassisControl.HARD_RESET) == 1
    assert len(console.bmc.machine.boots) == 1
    assert console.send(0, 0x07)[1] == RestartCause.CHASSIS_CONTROL


def test_a_diagnostic_interrupt_neither_boots_nor_stops() -> None:
    console = administrator()
    assert control(console, DIAG) == 0
    assert power_is_on(console)
    assert console.bmc.machine.boots == []


@pytest.mark.case("B26")
def test_an_operating_system_may_ignore_a_soft_shutdown_for_ever() -> None:
    clock = Clock()
    console = administrator(clock, timing=PowerTiming(soft_shutdown=None))
    assert control(console, SOFT) == 0
    for _ in range(60):
        clock.pass_(59)
        assert power_is_on(console)


def test_a_soft_shutdown_takes_its_time_and_a_later_order_replaces_it() -> None:
    clock = Clock()
    console = administrator(clock, timing=PowerTiming(soft_shutdown=30))
    control(console, SOFT)
    clock.pass_(29)
    assert power_is_on(console)
    control(console, RESET)
    clock.pass_(30)
    assert power_is_on(console)


def test_an_operator_may_order_and_a_user_may_not() -> None:
    bmc = make_bmc()
    viewer = RemoteConsole(bmc, user="viewer", password=b"view", level=2).open()
    assert viewer.send(0, 2, DOWN) == b"\xd4"
    assert viewer.send(0, 1)[0] == 0
    assert bmc.machine.orders == []


@pytest.mark.parametrize(("data", "code"), [(b"\x06", 0xCC), (b"", 0xC7), (b"\x01\x01", 0xC7)])
def test_a_control_request_that_is_wrong_orders_nothing(data: bytes, code: int) -> None:
    console = administrator()
    assert console.send(0, 2, data)[0] == code
    assert console.bmc.machine.orders == []


def test_identify_blinks_for_its_time() -> None:
    clock = Clock()
    console = administrator(clock)
    assert console.send(0, 4, b"\x05") == b"\x00"
    assert console.send(0, 1)[3] >> 4 & 3 == 1
    clock.pass_(5)
    assert console.send(0, 1)[3] >> 4 & 3 == 0
    console.send(0, 4, b"\x00\x01")
    assert console.send(0, 1)[3] >> 4 & 3 == 2


def test_a_boot_override_for_once_is_obeyed_by_one_boot() -> None:
    console = administrator()
    assert console.send(0, 8, PXE_UEFI_ONCE) == b"\x00"
    assert boot_flags(console) == b"\xa0\x04\x00\x00\x00"
    control(console, RESET)
    control(console, RESET)
    first, second = console.bmc.machine.boots
    assert first.override == BootOverride(BootDevice.PXE, uefi=True, persistent=False)
    assert second.override is None
    assert boot_flags(console) == b"\x20\x04\x00\x00\x00"


def test_a_persistent_override_is_obeyed_by_every_boot() -> None:
    console = administrator()
    console.send(0, 8, b"\x05\xe0\x08\x00\x00\x00")
    control(console, CYCLE)
    control(console, RESET)
    assert {boot.override for boot in console.bmc.machine.boots} == {
        BootOverride(BootDevice.DISK, uefi=True, persistent=True)
    }


def test_flags_are_no_longer_valid_60_seconds_after_they_were_set() -> None:
    clock = Clock()
    console = administrator(clock)
    console.send(0, 8, PXE_UEFI_ONCE)
    clock.pass_(59)
    assert boot_flags(console)[0] & 0x80
    clock.pass_(1)
    assert boot_flags(console) == b"\x20\x04\x00\x00\x00"
    control(console, RESET)
    assert console.bmc.machine.boots[0].override is None


def test_parameter_3_keeps_flags_valid_beyond_60_seconds() -> None:
    clock = Clock()
    console = administrator(clock)
    assert console.send(0, 8, b"\x03\x08") == b"\x00"
    console.send(0, 8, PXE_UEFI_ONCE)
    for _ in range(10):
        clock.pass_(50)
        console.send(6, 1)
    assert boot_flags(console)[0] & 0x80


def test_a_chassis_control_command_starts_the_60_seconds_anew() -> None:
    clock = Clock()
    console = administrator(clock, powered=False)
    console.send(0, 8, PXE_UEFI_ONCE)
    clock.pass_(50)
    control(console, DOWN)
    clock.pass_(50)
    control(console, UP)
    assert console.bmc.machine.boots[0].override is not None


def test_the_power_button_clears_the_flags_unless_parameter_3_keeps_them() -> None:
    forgetful, keeping = administrator(powered=False), administrator(powered=False)
    keeping.send(0, 8, b"\x03\x01")
    for console in (forgetful, keeping):
        console.send(0, 8, PXE_UEFI_ONCE)
        console.bmc.machine.press_power_button()
        assert console.send(0, 0x07)[1] == RestartCause.POWER_BUTTON
    assert forgetful.bmc.machine.boots[0].override is None
    assert keeping.bmc.machine.boots[0].override is not None


def test_a_bmc_without_parameter_3_says_so_and_still_takes_the_flags() -> None:
    console = administrator(unsupported_boot_parameters={3})
    assert console.send(0, 8, b"\x03\x08") == b"\x80"
    assert console.send(0, 8, PXE_UEFI_ONCE) == b"\x00"
    assert boot_flags(console)[0] == 0xA0


def test_set_in_progress_is_held_by_one_party() -> None:
    console = administrator()
    assert console.send(0, 8, b"\x00\x01") == b"\x00"
    assert console.send(0, 8, b"\x00\x01") == b"\x81"
    assert console.send(0, 9, b"\x00\x00\x00") == b"\x00\x01\x00\x01"
    assert console.send(0, 8, b"\x00\x00") == b"\x00"


def test_boot_info_acknowledge_changes_the_bits_of_its_mask() -> None:
    console = administrator()
    console.send(0, 8, b"\x04\x1f\x1f")
    console.send(0, 8, b"\x04\x01\x00")
    assert console.send(0, 9, b"\x04\x00\x00")[3:] == b"\x00\x1e"


def test_a_parameter_can_be_marked_invalid_and_valid_again() -> None:
    console = administrator()
    assert console.send(0, 8, b"\x85") == b"\x00"
    assert console.send(0, 9, b"\x05\x00\x00")[2] == 0x85
    assert console.send(0, 8, PXE_UEFI_ONCE) == b"\x00"
    assert console.send(0, 9, b"\x05\x00\x00")[2] == 0x05


def test_a_boot_flags_write_of_wrong_length_is_refused() -> None:
    console = administrator()
    assert console.send(0, 8, b"\x05\x80\x04") == b"\xc7"
    assert boot_flags(console) == bytes(5)
