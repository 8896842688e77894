"""`rackwright:ramdisk` on its way through an operation: an address for the BMC, and none for anybody else."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent import boot_media
from agent.bmcs import BmcMemory, Bmcs
from agent.ramdisk_boot import RamdiskBoot
from agent.vault import Vault, VaultKey
from protocol.boot_ticket import RAMDISK_IMAGE
from protocol.commands import Outcome
from protocol.errors import OperationError
from protocol.secret import Secret
from simulators.login import DEFAULT_PASSWORD
from simulators.redfish import RedfishServer
from simulators.redfish.faults import FaultRule
from tests.agent.boot_site import BootSite

NODE = "node_1"


@dataclass
class Rig:
    site: BootSite
    bmc: RedfishServer
    bmcs: Bmcs

    def payload(self, operation: str, node: str = NODE, **args: object) -> dict[str, object]:
        concern, _, name = operation.partition(".")
        return {
            "driver": "redfish",
            "concern": concern,
            "operation": name,
            "args": args,
            "targetNodeId": node,
            "target": {"address": self.bmc.url, "credentialRef": "bmc/a"},
        }

    async def done(self, operation: str, node: str = NODE, **args: object) -> dict[str, Any]:
        async with self.bmcs.turn(self.payload(operation, node, **args)) as work:
            return (await work.run(60, lambda _message, _percent: None)).result

    @property
    def inserted(self) -> list[str]:
        """What the BMC's slots really show."""
        return [str(slot.image) for slot in self.bmc.state.media.values() if slot.image]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    site = BootSite.make(tmp_path)
    vault = Vault(tmp_path / "vault.json", lambda: VaultKey.load(tmp_path / "vault.key", make=True))
    vault.set("bmc/a", "admin", Secret(DEFAULT_PASSWORD))
    bmcs = Bmcs(vault, BmcMemory(tmp_path / "bmcs.json"))
    bmcs.ramdisk_boot = RamdiskBoot(site.server, has_image=True)
    async with RedfishServer() as bmc:
        yield Rig(site, bmc, bmcs)
        await bmcs.aclose()
    await site.server.aclose()


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as client, client.head(url) as answer:
        return answer.status


async def test_the_bmc_gets_an_address_and_the_result_shows_none(rig: Rig) -> None:
    result = await rig.done("virtual-media.insertMedia", image=RAMDISK_IMAGE)
    (address,) = rig.inserted
    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/ramdisk.iso")
    assert await status_of(address) == 200
    assert result["image"] == RAMDISK_IMAGE
    slots = (await rig.done("virtual-media.listMedia"))["slots"]
    assert [slot["image"] for slot in slots if slot["inserted"]] == [RAMDISK_IMAGE]


async def test_another_machines_medium_is_not_taken_for_its_own(rig: Rig) -> None:
    await rig.done("virtual-media.insertMedia", image=RAMDISK_IMAGE)
    slots = (await rig.done("virtual-media.listMedia", "node_2"))["slots"]
    (shown,) = [slot["image"] for slot in slots if slot["inserted"]]
    assert shown.endswith("/***/ramdisk.iso")


async def test_each_insertion_is_a_new_medium_in_place_of_the_one_before(rig: Rig) -> None:
    await rig.done("virtual-media.insertMedia", image=RAMDISK_IMAGE)
    (first,) = rig.inserted
    await rig.done("virtual-media.insertMedia", image=RAMDISK_IMAGE)
    (second,) = rig.inserted
    assert first != second
    assert await status_of(first) == 404
    assert await status_of(second) == 200


async def test_an_ejected_medium_is_gone(rig: Rig) -> None:
    await rig.done("virtual-media.insertMedia", image=RAMDISK_IMAGE)
    (address,) = rig.inserted
    await rig.done("virtual-media.ejectMedia", device="cd")
    assert await status_of(address) == 404


async def test_other_images_are_inserted_as_they_are(rig: Rig) -> None:
    result = await rig.done("virtual-media.insertMedia", image="http://192.0.2.9/debian.iso")
    assert result["image"] == "http://192.0.2.9/debian.iso"
    assert rig.site.giver.given == []


async def test_uefi_http_boot_gets_an_address_of_its_own(rig: Rig) -> None:
    result = await rig.done("boot.setBootDevice", device="uefiHttp", httpBootUri=RAMDISK_IMAGE)
    assert result["httpBootUri"] == RAMDISK_IMAGE
    (order,) = rig.bmc.journal.entries("PATCH", "*/Systems/*")
    address = order.body["Boot"]["HttpBootUri"]
    assert await status_of(address) == 200
    assert (await rig.done("boot.getBoot"))["httpBootUri"] == RAMDISK_IMAGE
    result = await rig.done("boot.setBootDevice", device="disk")
    assert result["httpBootUri"] == RAMDISK_IMAGE, "the BMC still shows it"
    assert await status_of(address) == 404


@pytest.mark.parametrize(("persistent", "status"), [(False, 404), (True, 200)])
async def test_the_address_of_uefi_http_boot_is_good_for_as_many_starts_as_its_override(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, persistent: bool, status: int
) -> None:
    monkeypatch.setattr(boot_media, "QUIET_SECONDS", 0.0)
    await rig.done("boot.setBootDevice", device="uefiHttp", httpBootUri=RAMDISK_IMAGE, persistent=persistent)
    (order,) = rig.bmc.journal.entries("PATCH", "*/Systems/*")
    rig.site.giver.use(rig.site.giver.given[0])
    async with aiohttp.ClientSession() as client, client.get(order.body["Boot"]["HttpBootUri"]) as answer:
        assert answer.status == status


async def test_an_address_of_uefi_http_boot_shows_another_machine_nothing(rig: Rig) -> None:
    await rig.done("boot.setBootDevice", device="uefiHttp", httpBootUri=RAMDISK_IMAGE)
    shown = (await rig.done("boot.getBoot", "node_2"))["httpBootUri"]
    assert shown.endswith("/***/ramdisk.iso")


async def test_a_machine_that_is_to_start_over_the_network_gets_a_script(rig: Rig) -> None:
    rig.site.giver.machines["b8:2a:72:dd:a0:01"] = NODE
    _, script = await rig.site.server.media.script("b8:2a:72:dd:a0:01")
    assert "kernel" not in script
    await rig.done("boot.setBootDevice", device="pxe")
    node, script = await rig.site.server.media.script("b8:2a:72:dd:a0:01")
    assert node == NODE
    assert "kernel" in script
    await rig.done("boot.setBootDevice", device="none")
    _, script = await rig.site.server.media.script("b8:2a:72:dd:a0:01")
    assert "kernel" not in script


async def test_after_a_crash_the_machine_shows_whether_its_medium_is_inserted(rig: Rig) -> None:
    payload = rig.payload("virtual-media.insertMedia", image=RAMDISK_IMAGE)
    async with rig.bmcs.turn(payload) as work:
        assert (await work.observe(10)).outcome is Outcome.FAILED
        await work.run(60, lambda _message, _percent: None)
        ending = await work.observe(10)
    assert ending.outcome is Outcome.SUCCEEDED
    assert ending.result is not None
    assert ending.result["image"] == RAMDISK_IMAGE


@pytest.mark.parametrize(
    ("operation", "argument"), [("boot.setBootDevice", "httpBootUri"), ("virtual-media.insertMedia", "image")]
)
async def test_a_bmc_that_repeats_the_address_in_its_refusal_tells_it_to_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, operation: str, argument: str
) -> None:
    addresses: list[str] = []
    offer = rig.site.server.offer_medium

    async def offered(*args: Any, **options: Any) -> str:
        addresses.append(await offer(*args, **options))
        words = f"The value '{addresses[0]}' for the property {argument} is not valid."
        info = {"MessageId": "Base.1.8.PropertyValueFormatError", "Message": words, "Resolution": words}
        body = {"error": {"code": "Base.1.8.GeneralError", "message": words, "@Message.ExtendedInfo": [info]}}
        rig.bmc.faults.add(FaultRule(method="PATCH,POST", status=400, body=body))
        return addresses[0]

    monkeypatch.setattr(rig.site.server, "offer_medium", offered)
    more = {"device": "uefiHttp"} if argument == "httpBootUri" else {}
    with pytest.raises(OperationError, match="is not valid") as failure:
        await rig.done(operation, **{argument: RAMDISK_IMAGE}, **more)
    (address,) = addresses
    error = failure.value
    told = f"{error} {error.message} {error.details} {error.bmc}"
    assert "/***/ramdisk.iso" in told
    assert address.split("/")[3] not in told


async def test_a_refused_ticket_fails_the_insertion_before_the_bmc_is_asked(rig: Rig) -> None:
    rig.site.giver.refusal = "this agent's site has no such machine"
    with pytest.raises(OperationError, match="this agent's site has no such machine"):
        await rig.done("virtual-media.insertMedia", image=RAMDISK_IMAGE)
    assert rig.bmc.journal.entries("POST", "*InsertMedia") == []
