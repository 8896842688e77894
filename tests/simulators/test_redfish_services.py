"""The services beside power and media: BIOS, secure boot, updates and their tasks, volumes, events, certificates."""

import asyncio
import io
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from simulators.redfish import ServiceOptions, TlsMaterial
from tests.simulators.conftest import MANAGER, SYSTEM, FakeClock, RedfishClient, Start, basic

BIOS = f"{SYSTEM}/Bios"
UPDATE = "/redfish/v1/UpdateService"
BMC_FIRMWARE = f"{UPDATE}/FirmwareInventory/BMC"
STORAGE = f"{SYSTEM}/Storage/RAID1"
EVENTS = "/redfish/v1/EventService"


def drives(*numbers: int) -> dict[str, Any]:
    return {"Drives": [{"@odata.id": f"{STORAGE}/Drives/Disk{number}"} for number in numbers]}


async def test_bios_attributes_are_pending_until_the_host_starts(start: Start) -> None:
    bmc = await start()

    patched = await bmc.patch(f"{BIOS}/Settings", {"Attributes": {"SrIov": "Enabled", "NumaPerSocket": 2}})
    before = (await bmc.get(BIOS)).data["Attributes"]
    pending = (await bmc.get(f"{BIOS}/Settings")).data["Attributes"]
    await bmc.reset("ForceRestart")
    after = (await bmc.get(BIOS)).data["Attributes"]

    assert patched.status == 200
    assert pending == {"SrIov": "Enabled", "NumaPerSocket": 2}
    assert (before["SrIov"], before["NumaPerSocket"]) == ("Disabled", 1)
    assert (after["SrIov"], after["NumaPerSocket"]) == ("Enabled", 2)
    assert (await bmc.get(f"{BIOS}/Settings")).data["Attributes"] == {}


async def test_bios_attributes_are_refused_on_the_resource_in_effect(start: Start) -> None:
    bmc = await start()

    reply = await bmc.patch(BIOS, {"Attributes": {"SrIov": "Enabled"}})

    assert reply.status == 400
    assert f"{BIOS}/Settings" in reply.body.decode()


async def test_all_wrong_bios_attributes_are_named_at_once(start: Start) -> None:
    bmc = await start()
    wrong = {"Nonsense": 1, "PowerProfile": "Ludicrous", "TpmState": "Disabled", "NumaPerSocket": "two"}

    reply = await bmc.patch(f"{BIOS}/Settings", {"Attributes": {**wrong, "SrIov": "Enabled"}})

    assert reply.status == 400
    assert sorted(reply.message_ids) == [
        "PropertyNotWritable",
        "PropertyUnknown",
        "PropertyValueNotInList",
        "PropertyValueTypeError",
    ]
    assert (await bmc.get(f"{BIOS}/Settings")).data["Attributes"] == {}


async def test_a_bios_reset_brings_the_registry_defaults_at_the_next_start(start: Start) -> None:
    bmc = await start()
    await bmc.patch(f"{BIOS}/Settings", {"Attributes": {"SrIov": "Enabled"}})
    await bmc.reset("ForceRestart")

    assert (await bmc.post(f"{BIOS}/Actions/Bios.ResetBios", {})).status == 204
    assert (await bmc.get(BIOS)).data["Attributes"]["SrIov"] == "Enabled"
    await bmc.reset("ForceRestart")

    assert (await bmc.get(BIOS)).data["Attributes"]["SrIov"] == "Disabled"


async def test_secure_boot_is_in_effect_after_the_next_start(start: Start) -> None:
    bmc = await start()
    path = f"{SYSTEM}/SecureBoot"

    patched = await bmc.patch(path, {"SecureBootEnable": True})
    await bmc.reset("ForceRestart")
    after = (await bmc.get(path)).data

    assert (patched.data["SecureBootEnable"], patched.data["SecureBootCurrentBoot"]) == (True, "Disabled")
    assert after["SecureBootCurrentBoot"] == "Enabled"


async def test_an_update_is_a_task_that_moves_and_ends(start: Start, clock: FakeClock) -> None:
    bmc = await start(fetches_images=False, options=ServiceOptions(task_seconds=100), clock=clock)

    begun = await bmc.post(
        f"{UPDATE}/Actions/UpdateService.SimpleUpdate", {"ImageURI": "http://x.example/bmc-3.1.4.bin"}
    )
    task, monitor = begun.data["@odata.id"], begun.headers["Location"]
    seen = []
    for _ in range(5):
        body = (await bmc.get(task)).data
        seen.append((body["TaskState"], body["PercentComplete"], (await bmc.get(monitor)).status))
        clock.move(25)

    assert begun.status == 202
    assert seen == [
        ("Starting", 0, 202),
        ("Running", 10, 202),
        ("Running", 40, 202),
        ("Running", 70, 202),
        ("Completed", 100, 200),
    ]
    assert (await bmc.get(BMC_FIRMWARE)).data["Version"] == "3.1.4"
    assert task in (await bmc.get("/redfish/v1/TaskService/Tasks")).body.decode()


async def test_a_task_can_be_cancelled_and_then_does_nothing(start: Start, clock: FakeClock) -> None:
    bmc = await start(fetches_images=False, options=ServiceOptions(task_seconds=100), clock=clock)
    begun = await bmc.post(
        f"{UPDATE}/Actions/UpdateService.SimpleUpdate", {"ImageURI": "http://x.example/bmc-9.9.9.bin"}
    )

    assert (await bmc.delete(begun.data["@odata.id"])).status == 204
    clock.move(200)

    assert (await bmc.get(begun.data["@odata.id"])).data["TaskState"] == "Cancelled"
    assert (await bmc.get(BMC_FIRMWARE)).data["Version"] == "2.13.0"


async def test_an_update_of_a_target_that_is_not_there_ends_as_exception(start: Start) -> None:
    bmc = await start(fetches_images=False)

    body = {"ImageURI": "http://x.example/f-1.0.bin", "Targets": [f"{UPDATE}/FirmwareInventory/Nothing"]}
    begun = await bmc.post(f"{UPDATE}/Actions/UpdateService.SimpleUpdate", body)

    assert begun.status == 202
    assert begun.data["TaskState"] == "Exception"
    assert "Nothing" in begun.data["Messages"][0]["Message"]
    assert (await bmc.get(begun.headers["Location"])).status == 500


async def test_firmware_is_pushed_raw_and_as_a_form(start: Start) -> None:
    bmc = await start()
    form = aiohttp.FormData()
    form.add_field(
        "UpdateParameters", f'{{"Targets": ["{UPDATE}/FirmwareInventory/BIOS"]}}', content_type="application/json"
    )
    form.add_field(
        "UpdateFile",
        io.BytesIO(b"\x00" * 3_000_000),
        filename="bios-1.9.0.bin",
        content_type="application/octet-stream",
    )

    raw = await bmc.request(
        "POST",
        f"{UPDATE}/upload",
        data=b"\x01" * 1024,
        headers={
            "Content-Type": "application/octet-stream",
            "Content-Disposition": 'attachment; filename="bmc-2.20.1.bin"',
        },
    )
    pushed = await bmc.request("POST", f"{UPDATE}/upload-multipart", data=form)

    assert (raw.status, pushed.status) == (202, 202)
    assert (await bmc.get(BMC_FIRMWARE)).data["Version"] == "2.20.1"
    assert (await bmc.get(f"{UPDATE}/FirmwareInventory/BIOS")).data["Version"] == "1.9.0"


async def test_a_form_without_its_parts_is_refused(start: Start) -> None:
    bmc = await start()
    form = aiohttp.FormData()
    form.add_field("UpdateFile", b"x", filename="a.bin")

    assert (await bmc.request("POST", f"{UPDATE}/upload-multipart", data=form)).status == 400
    assert (await bmc.request("POST", f"{UPDATE}/upload", data=b"")).status == 400


async def test_a_volume_is_created_on_free_drives_and_deleted(start: Start) -> None:
    bmc = await start()

    created = await bmc.post(f"{STORAGE}/Volumes", {"RAIDType": "RAID1", "Name": "data", "Links": drives(3, 4)})
    path = created.headers["Location"]
    linked = (await bmc.get(f"{STORAGE}/Drives/Disk3")).data["Links"]["Volumes"]
    deleted = await bmc.delete(path)

    assert created.status == 201
    assert created.data["CapacityBytes"] == 960197124096
    assert linked == [{"@odata.id": path}]
    assert deleted.status == 204
    assert (await bmc.get(path)).status == 404
    assert (await bmc.get(f"{STORAGE}/Volumes")).data["Members@odata.count"] == 1
    assert (await bmc.get(f"{STORAGE}/Drives/Disk3")).data["Links"]["Volumes"] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"RAIDType": "RAID1", "Links": drives(1, 2)}, 409),
        ({"RAIDType": "RAID5", "Links": drives(3, 4)}, 400),
        ({"RAIDType": "RAID9", "Links": drives(3)}, 400),
        ({"RAIDType": "RAID0", "Links": drives(3, 9)}, 400),
        ({"RAIDType": "RAID1"}, 400),
        ({"RAIDType": "RAID1", "Links": drives(3, 4), "CapacityBytes": 10**15}, 400),
        ({"RAIDType": "RAID1", "Links": drives(3, 4), "Colour": "red"}, 400),
    ],
)
async def test_a_volume_that_cannot_be_is_refused(start: Start, body: object, status: int) -> None:
    bmc = await start()

    assert (await bmc.post(f"{STORAGE}/Volumes", body)).status == status


def offer_times(bmc: RedfishClient, *times: str) -> None:
    support = {"@odata.type": "#Settings.v1_3_5.OperationApplyTimeSupport", "SupportedValues": list(times)}
    bmc.server.state.patch(f"{STORAGE}/Volumes", {"@Redfish.OperationApplyTimeSupport": support})


async def test_a_volume_for_later_is_made_with_the_next_start_of_the_host(start: Start, clock: FakeClock) -> None:
    bmc = await start(options=ServiceOptions(task_seconds=60), clock=clock)
    offer_times(bmc, "Immediate", "OnReset")
    body = {"RAIDType": "RAID0", "Links": drives(3, 4), "@Redfish.OperationApplyTime": "OnReset"}

    async def count() -> int:
        return int((await bmc.get(f"{STORAGE}/Volumes")).data["Members@odata.count"])

    begun = await bmc.post(f"{STORAGE}/Volumes", body)
    clock.move(600)
    before = await count()
    again = await bmc.post(f"{STORAGE}/Volumes", body)
    await bmc.reset("ForceRestart")
    clock.move(61)

    assert (begun.status, begun.data["Payload"]["TargetUri"]) == (202, f"{STORAGE}/Volumes")
    assert (again.status, before, await count()) == (409, 1, 2)


@pytest.mark.parametrize(
    ("times", "asked", "status"),
    [
        ((), "Immediate", 400),
        (("OnReset",), "Immediate", 400),
        (("OnReset",), None, 202),
        (("Immediate",), None, 201),
    ],
)
async def test_a_volume_is_made_at_a_time_that_is_offered(
    start: Start, times: tuple[str, ...], asked: str | None, status: int
) -> None:
    bmc = await start()
    if times:
        offer_times(bmc, *times)
    body = {"RAIDType": "RAID0", "Links": drives(3, 4)}
    if asked is not None:
        body["@Redfish.OperationApplyTime"] = asked

    assert (await bmc.post(f"{STORAGE}/Volumes", body)).status == status


async def test_a_vendor_with_one_job_for_a_controller_refuses_a_second(start: Start, clock: FakeClock) -> None:
    bmc = await start(options=ServiceOptions(task_seconds=60), clock=clock, behaviour="dell-idrac")

    first = await bmc.post(f"{STORAGE}/Volumes", {"RAIDType": "RAID0", "Links": drives(3)})
    second = await bmc.delete(f"{STORAGE}/Volumes/1")
    clock.move(61)
    third = await bmc.delete(f"{STORAGE}/Volumes/1")

    assert (first.status, second.status, second.message_ids, third.status) == (202, 400, ["SYS011"], 202)


async def test_a_request_for_a_volume_must_hold_what_this_bmc_wants(start: Start) -> None:
    options = ServiceOptions(volume_properties_required=("VolumeType",), volume_properties_refused=("Encrypted",))
    bmc = await start(options=options)
    body = {"RAIDType": "RAID1", "Links": drives(3, 4)}

    assert (await bmc.post(f"{STORAGE}/Volumes", body)).message_ids == ["PropertyMissing"]
    body["VolumeType"] = "Mirrored"
    assert (await bmc.post(f"{STORAGE}/Volumes", {**body, "Encrypted": False})).message_ids == ["PropertyUnknown"]
    assert (await bmc.post(f"{STORAGE}/Volumes", body)).status == 201


async def test_a_controller_is_reset_with_its_volumes_and_spares(start: Start) -> None:
    bmc = await start()
    target = f"{STORAGE}/Actions/Storage.ResetToDefaults"
    bmc.server.state.patch(STORAGE, {"Actions": {"#Storage.ResetToDefaults": {"target": target}}})
    spares = {"Links": {"DedicatedSpareDrives": drives(3)["Drives"]}}

    assert (await bmc.patch(f"{STORAGE}/Volumes/1", spares)).status == 200
    assert (await bmc.get(f"{STORAGE}/Drives/Disk3")).data["HotspareType"] == "Dedicated"
    assert (await bmc.post(f"{STORAGE}/Volumes", {"RAIDType": "RAID0", "Links": drives(3)})).status == 409
    assert (await bmc.post(target, {"ResetType": "ResetAll"})).status == 204
    assert (await bmc.get(f"{STORAGE}/Volumes")).data["Members"] == []
    assert (await bmc.get(f"{STORAGE}/Drives/Disk3")).data["HotspareType"] == "None"
    assert (await bmc.post(target, {"ResetType": "Everything"})).status == 400


async def test_events_reach_their_subscriber_until_it_leaves(start: Start) -> None:
    received: asyncio.Queue[tuple[dict[str, Any], str]] = asyncio.Queue()

    async def listen(request: web.BaseRequest) -> web.Response:
        received.put_nowait((await request.json(), request.headers["X-Key"]))
        return web.Response(status=204)

    listener = web.Server(listen)
    socket = await asyncio.get_running_loop().create_server(listener, "127.0.0.1", 0)
    destination = f"http://127.0.0.1:{socket.sockets[0].getsockname()[1]}/events"
    bmc = await start()
    body = {
        "Destination": destination,
        "Protocol": "Redfish",
        "Context": "site-1",
        "HttpHeaders": [{"X-Key": "k-4711"}],
    }

    subscribed = await bmc.post(f"{EVENTS}/Subscriptions", body)
    await bmc.post(f"{EVENTS}/Actions/EventService.SubmitTestEvent", {"MessageId": "ResourceEvent.1.3.TestMessage"})
    test_event, key = await received.get()
    await bmc.reset("ForceOff")
    power_event, _ = await received.get()
    unsubscribed = await bmc.delete(subscribed.headers["Location"])
    await bmc.reset("On")

    assert subscribed.status == 201
    assert (subscribed.data["HttpHeaders"], key) == ([], "k-4711")
    assert test_event["Context"] == "site-1"
    assert test_event["Events"][0]["MessageId"] == "ResourceEvent.1.3.TestMessage"
    assert power_event["Events"][0]["OriginOfCondition"] == {"@odata.id": SYSTEM}
    assert unsubscribed.status == 204
    assert received.empty()
    socket.close()
    await listener.shutdown(0.02)


@pytest.mark.parametrize(
    "body", [{}, {"Destination": "ftp://x", "Protocol": "Redfish"}, {"Destination": "https://x", "Protocol": "FTP"}]
)
async def test_a_wrong_subscription_is_refused(start: Start, body: object) -> None:
    bmc = await start()

    assert (await bmc.post(f"{EVENTS}/Subscriptions", body)).status == 400


async def test_a_signing_request_is_made_and_a_certificate_replaced(start: Start) -> None:
    bmc = await start()
    service = "/redfish/v1/CertificateService/Actions/CertificateService"
    certificates = f"{MANAGER}/NetworkProtocol/HTTPS/Certificates"

    request = await bmc.post(
        f"{service}.GenerateCSR",
        {"CommonName": "bmc7.example.net", "CertificateCollection": {"@odata.id": certificates}},
    )
    new = TlsMaterial.self_signed(("bmc7.example.net",)).certificate.decode()
    replaced = await bmc.post(
        f"{service}.ReplaceCertificate",
        {"CertificateString": new, "CertificateType": "PEM", "CertificateUri": {"@odata.id": f"{certificates}/1"}},
    )
    nonsense = await bmc.post(
        f"{service}.ReplaceCertificate",
        {"CertificateString": "x", "CertificateType": "PEM", "CertificateUri": {"@odata.id": f"{certificates}/1"}},
    )

    assert "bmc7.example.net" in x509.load_pem_x509_csr(request.data["CSRString"].encode()).subject.rfc4514_string()
    assert replaced.status == 204
    assert (await bmc.get(f"{certificates}/1")).data["CertificateString"] == new
    assert nonsense.status == 400


@pytest.mark.parametrize(
    ("query", "check"),
    [
        (
            "?$select=PowerState,Boot/BootOrder",
            lambda body: set(body) == {"@odata.id", "@odata.type", "PowerState", "Boot"},
        ),
        ("?rackwright=1", lambda body: body["Id"] == "1"),
        (
            "?$expand=.",
            lambda body: body["Bios"]["Id"] == "Bios" and body["Links"]["Chassis"][0].keys() == {"@odata.id"},
        ),
        (
            "?$expand=~",
            lambda body: body["Links"]["Chassis"][0]["Id"] == "1" and body["Bios"].keys() == {"@odata.id"},
        ),
    ],
)
async def test_query_parameters_of_a_resource(start: Start, query: str, check: Any) -> None:
    bmc = await start()

    reply = await bmc.get(SYSTEM + query)

    assert reply.status == 200
    assert check(reply.data)


async def test_query_parameters_of_a_collection(start: Start) -> None:
    bmc = await start()
    entries = f"{SYSTEM}/LogServices/SEL/Entries"

    only = await bmc.get("/redfish/v1/Systems?only")
    page = await bmc.get(f"{entries}?$top=2&$skip=3")
    critical = await bmc.get(f"{entries}?$filter=Severity eq 'Critical'")
    expanded = await bmc.get("/redfish/v1/Chassis?$expand=*($levels=2)")

    assert only.data["@odata.id"] == SYSTEM
    assert [member["@odata.id"][-1] for member in page.data["Members"]] == ["4", "5"]
    assert page.data["Members@odata.count"] == 6
    assert [member["@odata.id"][-1] for member in critical.data["Members"]] == ["5"]
    assert expanded.data["Members"][0]["Thermal"]["Fans"][0]["Name"] == "Fan 1"


@pytest.mark.parametrize(
    ("query", "status"),
    [("?$nonsense=1", 501), ("?$expand=x", 400), ("?$expand=*($levels=9)", 400), ("?$top=2", 400)],
)
async def test_a_query_that_cannot_be_carried_out_is_told(start: Start, query: str, status: int) -> None:
    bmc = await start()

    assert (await bmc.get(SYSTEM + query, headers=basic())).status == status
