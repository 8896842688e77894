"""The boot override: which bytes are written, and what is made of what is read back."""

from typing import Any

import pytest

from drivers.ipmi.boot import BootFlags, flags_for, parse_boot_flags
from drivers.ipmi.quirks import MAKERS, UNKNOWN_MAKER
from protocol.errors import ErrorCode
from protocol.shapes.boot import BootDevice, BootMode
from simulators.ipmi.identity import Identity
from tests.drivers.ipmi.conftest import Site, StartSite

SET = (0x00, 0x08)
SUPERMICRO = 10876


def writes(site: Site, parameter: int) -> list[str]:
    """The data written to a parameter, in hexadecimal."""
    return [entry.data[1:].hex() for entry in site.asked(*SET) if entry.data[0] == parameter]


@pytest.mark.parametrize(
    ("device", "mode", "persistent", "written"),
    [
        ("pxe", "uefi", False, "a004000000"),
        ("pxe", "uefi", True, "e004000000"),
        ("pxe", "bios", False, "8004000000"),
        ("disk", "bios", True, "c008000000"),
        ("cd", "uefi", False, "a014000000"),
        ("usb", "uefi", False, "a03c000000"),
        ("bios", "bios", False, "8018000000"),
    ],
)
async def test_each_device_is_written_with_all_its_flags_and_read_back(
    site: Site, device: str, mode: str, persistent: bool, written: str
) -> None:
    result = await site.invoke("boot.setBootDevice", device=device, mode=mode, persistent=persistent)
    assert writes(site, 5) == [written]
    assert (result["target"], result["mode"]) == (device, mode)
    assert result["enabled"] == ("continuous" if persistent else "once")
    reading = await site.invoke("boot.getBoot")
    assert (reading["target"], reading["mode"], reading["enabled"]) == (device, mode, result["enabled"])


async def test_the_sixty_second_timer_is_switched_off_before_the_flags_are_written(site: Site) -> None:
    await site.invoke("boot.setBootDevice", device="pxe")
    order = [entry.data[:2].hex() for entry in site.asked(*SET)]
    assert order == ["0001", "0308", "05a0", "0000"]


@pytest.mark.parametrize("code", [0x80, 0xC1, 0xCC, 0xCD])
async def test_a_bmc_without_the_timer_parameter_is_set_all_the_same(site: Site, code: int) -> None:
    site.fault(netfn=0, cmd=8, data="03", completion_code=code)
    assert (await site.invoke("boot.setBootDevice", device="disk"))["target"] == "disk"


async def test_a_bmc_without_the_lock_parameter_is_set_all_the_same(start_site: StartSite) -> None:
    site = await start_site(unsupported_boot_parameters=(0, 3))
    assert (await site.invoke("boot.setBootDevice", device="cd"))["target"] == "cd"
    assert writes(site, 0) == ["01"]


async def test_a_lock_that_a_dead_client_left_is_broken_open_after_a_while(site: Site, hasty: None) -> None:
    site.bmc.machine.boot_options.write(0, b"\x01", 0.0)
    assert (await site.invoke("boot.setBootDevice", device="pxe"))["target"] == "pxe"
    assert writes(site, 0)[-2:] == ["01", "00"]


async def test_the_lock_is_released_though_the_write_fails(site: Site) -> None:
    site.fault(netfn=0, cmd=8, data="05", completion_code=0xFF)
    assert (await site.refused("boot.setBootDevice", device="pxe")).code is ErrorCode.BMC_ERROR
    assert writes(site, 0) == ["01", "00"]


async def test_a_lock_that_cannot_be_released_does_not_hide_that_the_flags_are_set(site: Site) -> None:
    site.fault(netfn=0, cmd=8, data="0000", completion_code=0xFF)
    assert (await site.invoke("boot.setBootDevice", device="pxe"))["target"] == "pxe"


async def test_none_clears_the_override(site: Site) -> None:
    await site.invoke("boot.setBootDevice", device="pxe", persistent=True)
    result = await site.invoke("boot.setBootDevice", device="none")
    assert (result["target"], result["enabled"]) == ("none", "disabled")
    assert (await site.invoke("boot.getBoot"))["enabled"] == "disabled"
    assert site.bmc.machine.boot_options.override(site.bmc.clock()) is None


async def test_without_a_mode_the_present_overrides_mode_is_kept(site: Site) -> None:
    await site.invoke("boot.setBootDevice", device="pxe", mode="bios")
    assert (await site.invoke("boot.setBootDevice", device="disk"))["mode"] == "bios"


async def test_without_a_mode_and_without_an_override_uefi_is_asked_for(site: Site) -> None:
    assert (await site.invoke("boot.setBootDevice", device="disk"))["mode"] == "uefi"


async def test_a_supermicro_machine_is_given_its_own_number_for_a_uefi_disk(start_site: StartSite) -> None:
    site = await start_site(identity=Identity(manufacturer=SUPERMICRO))
    result = await site.invoke("boot.setBootDevice", device="disk", mode="uefi", persistent=True)
    assert writes(site, 5) == ["e024000000"]
    assert result["target"] == "disk"
    await site.invoke("boot.setBootDevice", device="disk", mode="bios")
    assert writes(site, 5)[-1] == "8008000000"


async def test_flags_that_do_not_stay_are_not_applied(site: Site) -> None:
    await site.invoke("boot.setBootDevice", device="pxe", mode="uefi")
    written = site.bmc.machine.boot_options.write

    def forgets(parameter: int, data: bytes, now: float) -> None:
        if parameter != 5:
            written(parameter, data, now)

    site.bmc.machine.boot_options.write = forgets  # type: ignore[method-assign]
    error = await site.refused("boot.setBootDevice", device="disk")
    assert error.code is ErrorCode.NOT_APPLIED
    assert "reads back PXE (0xa0 0x04)" in error.message


async def test_a_bmc_that_keeps_no_lasting_override_says_so_in_the_result(site: Site) -> None:
    written = site.bmc.machine.boot_options.write

    def once_only(parameter: int, data: bytes, now: float) -> None:
        written(parameter, bytes((data[0] & ~0x40,)) + data[1:] if parameter == 5 else data, now)

    site.bmc.machine.boot_options.write = once_only  # type: ignore[method-assign]
    result = await site.invoke("boot.setBootDevice", device="pxe", persistent=True)
    assert (result["enabled"], result["persistentSupported"]) == ("once", False)


@pytest.mark.parametrize("code", [0x80, 0xC1])
async def test_flags_that_cannot_be_read_are_set_with_a_note(site: Site, code: int) -> None:
    site.fault(netfn=0, cmd=9, completion_code=code)
    reply = await site.reply("boot.setBootDevice", device="pxe", mode="uefi")
    assert reply.result["target"] == "pxe"
    assert "does not give the boot flags" in reply.observed["bootReadBack"]
    assert (await site.refused("boot.getBoot")).code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    "arguments", [{"device": "uefiHttp"}, {"device": "pxe", "httpBootUri": "http://192.0.2.1/b"}]
)
async def test_http_boot_does_not_exist_in_ipmi(site: Site, arguments: dict[str, Any]) -> None:
    assert (await site.refused("boot.setBootDevice", **arguments)).code is ErrorCode.UNSUPPORTED
    assert site.asked(*SET) == []


@pytest.mark.parametrize("operation", ["boot.getSecureBoot", "virtual-media.listMedia"])
async def test_what_ipmi_does_not_have_is_unsupported(site: Site, operation: str) -> None:
    assert (await site.refused(operation)).code is ErrorCode.UNSUPPORTED


def test_flags_are_read_with_the_specifications_words() -> None:
    flags = parse_boot_flags(bytes.fromhex("0105a02000"))
    assert flags.device(UNKNOWN_MAKER) == (BootDevice.CD, "remote CD/DVD (0xa0 0x20)")
    assert BootFlags(0x80, 0x24).device(UNKNOWN_MAKER)[0] is None
    assert BootFlags(0xA0, 0x24).device(MAKERS[SUPERMICRO])[0] is BootDevice.DISK


def test_flags_of_another_parameter_or_cut_short_are_an_error() -> None:
    for data in (b"", b"\x01\x05\xa0", b"\x01\x04\xa0\x04\x00"):
        with pytest.raises(ValueError, match="cannot be read"):
            parse_boot_flags(data)


def test_every_device_but_http_has_flags_in_both_modes() -> None:
    for device in BootDevice:
        for mode in BootMode:
            if device is not BootDevice.UEFI_HTTP:
                assert flags_for(device, mode, False, UNKNOWN_MAKER).valid
