"""Trust in a BMC's certificate: verified, pinned, taken on first use, or not asked for."""

from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from simulators.redfish import TlsMaterial
from tests.drivers.redfish.harness import bench, without_waiting


@pytest.fixture(scope="module")
def material() -> TlsMaterial:
    return TlsMaterial.self_signed(("127.0.0.1",))


@without_waiting
async def test_an_unknown_certificate_is_untrusted_and_the_error_says_how_to_pin_it(material: TlsMaterial) -> None:
    async with bench(tls=material) as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.TLS_UNTRUSTED
        assert f"sha256:{material.fingerprint}" in error.message
        assert error.details["fingerprint"] == material.fingerprint
        assert len(bmc.bmc.journal) == 0


@without_waiting
async def test_a_pinned_certificate_is_trusted(material: TlsMaterial) -> None:
    async with bench(tls=material, verify=f"sha256:{material.fingerprint}") as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"


@without_waiting
async def test_a_certificate_other_than_the_pinned_one_is_untrusted_before_a_password_is_sent(
    material: TlsMaterial,
) -> None:
    async with bench(tls=material, verify=f"sha256:{'ab' * 32}") as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.TLS_UNTRUSTED
        assert error.details == {"expected": "ab" * 32, "fingerprint": material.fingerprint}
        assert len(bmc.bmc.journal) == 0


@without_waiting
async def test_the_first_certificate_is_taken_and_told(material: TlsMaterial) -> None:
    async with bench(tls=material, verify="first-use") as bmc:
        async with bmc.drivers.turn(bmc.target, "power.getPower", {}) as turn:
            reply = await turn.run({})
        assert reply.observed == {"tlsFingerprint": material.fingerprint}
        assert bmc.drivers.environment.pins == {bmc.target.endpoint: material.fingerprint}


@without_waiting
async def test_after_the_first_use_another_certificate_is_untrusted(material: TlsMaterial) -> None:
    pins: dict[str, str] = {}
    async with bench(tls=material, verify="first-use", pins=pins) as bmc:
        pins[bmc.target.endpoint] = "cd" * 32
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.TLS_UNTRUSTED
        assert error.details == {"expected": "cd" * 32, "fingerprint": material.fingerprint}
        assert pins == {bmc.target.endpoint: "cd" * 32}


@without_waiting
async def test_a_pin_that_is_replaced_while_the_connection_lives_counts_from_then_on(material: TlsMaterial) -> None:
    pins: dict[str, str] = {}
    async with bench(tls=material, verify="first-use", pins=pins) as bmc:
        await bmc("power.getPower")
        pins[bmc.target.endpoint] = "ef" * 32
        assert (await bmc.fails("power.getPower")).code is ErrorCode.TLS_UNTRUSTED


@without_waiting
async def test_without_a_check_any_certificate_does(material: TlsMaterial) -> None:
    async with bench(tls=material, verify=False) as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"


@without_waiting
async def test_a_ca_of_the_site_is_trusted(material: TlsMaterial, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(material.certificate)
    async with bench(tls=material, verify=f"ca:{file}") as bmc:
        assert (await bmc("power.getPower"))["state"] == "on"


@pytest.mark.parametrize("content", [None, b"no certificate"])
@without_waiting
async def test_a_ca_file_that_cannot_be_used_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    async with bench(tls=True, verify=f"ca:{file}") as bmc:
        error = await bmc.fails("power.getPower")
        assert error.code is ErrorCode.INVALID_ARGUMENT
        assert str(file) in error.message
