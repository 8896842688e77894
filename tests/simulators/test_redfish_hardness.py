"""Whatever a client sends, the service answers with a proper status and stays as it is: no input makes it fail."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulators.redfish import OWN_TREE, RecordedTree, load_faults
from simulators.redfish.documents import Request
from simulators.redfish.service import RedfishService
from tests.simulators.conftest import SYSTEM, Start, basic

TREE = RecordedTree.load(OWN_TREE)
UPLOADS = {"/redfish/v1/UpdateService/upload", "/redfish/v1/UpdateService/upload-multipart"}
ODDITIES = {"", "/", "//", "/redfish/v1/%00", "/redfish/v1/Systems/Members", "/redfish/v1/Systems/1/Actions/"}
TARGETS = sorted({resource.path for resource in TREE} | set(TREE.action_owners) | UPLOADS | ODDITIES)
PARAMETERS = [
    "ResetType",
    "Image",
    "Inserted",
    "UserName",
    "Password",
    "RoleId",
    "BootSourceOverrideTarget",
    "BootOrder",
    "ImageURI",
    "Targets",
    "RAIDType",
    "Drives",
    "CapacityBytes",
    "Destination",
    "Protocol",
    "HttpHeaders",
    "ResetKeysType",
    "CertificateUri",
    "CertificateString",
    "Country",
    "CertificateType",
    "CommonName",
    "CertificateCollection",
    "InitializeType",
    "NewPassword",
    "@Redfish.OperationApplyTime",
    "NTPServers",
]
NAMES = sorted({name for resource in TREE for name in resource.document or {}} | set(PARAMETERS))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(TARGETS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
BODIES = OBJECTS.map(lambda body: json.dumps(body).encode()) | st.binary()
QUERIES = ["", "only", "$expand=*", "$select=", "$filter=Id eq '1'", "$top=x", "$skip=1"]
HEADERS = ["If-Match", "If-None-Match", "Authorization", "X-Auth-Token", "OData-Version"]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "PATCH", "PUT", "DELETE"]),
    path=st.sampled_from(TARGETS),
    query=st.sampled_from(QUERIES) | st.text(),
    body=BODIES,
)
def test_no_request_makes_the_service_fail(method: str, path: str, query: str, body: bytes) -> None:
    service = RedfishService(TREE, users={"admin": "password"})
    request = Request(method, path, query, body=body)
    request.headers.update(basic())  # type: ignore[union-attr]

    answer, _ = service.answer(request)

    assert answer.status < 500 or answer.status == 501, answer.body
    if answer.status >= 400:
        assert json.loads(answer.body)["error"]["@Message.ExtendedInfo"]


@settings(max_examples=150, deadline=None)
@given(
    header=st.sampled_from(HEADERS),
    value=st.text(),
)
def test_no_header_makes_the_service_fail(header: str, value: str) -> None:
    service = RedfishService(TREE, users={"admin": "password"})
    request = Request("PATCH", SYSTEM, body=b'{"AssetTag": "x"}')
    request.headers.update({**basic(), header: value})  # type: ignore[union-attr]

    answer, _ = service.answer(request)

    assert answer.status in (200, 401, 412)


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /redfish/v1/ HTTP/9.9\r\n\r\n",
        b"GET /redfish/v1/ HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"\x16\x03\x01\x00\xf4\x01",
        b"POST /redfish/v1/SessionService/Sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]",
    ],
)
async def test_what_is_no_http_is_refused_and_the_service_goes_on(start: Start, sent: bytes) -> None:
    bmc = await start()
    reader, writer = await asyncio.open_connection(bmc.server.host, bmc.server.port)
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 501", b"HTTP/1.0 501"))
    assert (await bmc.get(SYSTEM)).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/redfish/v1/Systems/1/Storage/RAID1/Volumes", {"RAIDType": {}, "Links": {"Drives": [1, {}]}}),
        ("/redfish/v1/Systems/1/Storage/RAID1/Volumes", {"Drives": 1}),
        ("/redfish/v1/AccountService/Accounts", {"UserName": "a", "Password": "b", "RoleId": ["Operator"]}),
        ("/redfish/v1/EventService/Subscriptions", {"Destination": 1, "Protocol": ["Redfish"]}),
    ],
)
async def test_a_value_of_the_wrong_type_is_a_client_error(start: Start, path: str, body: object) -> None:
    bmc = await start()

    assert (await bmc.post(path, body)).status == 400


def test_the_fault_rules_of_the_readme_can_be_loaded(tmp_path: Path) -> None:
    readme = (OWN_TREE.parents[1] / "README.md").read_text()
    blocks: list[Any] = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    file = tmp_path / "faults.toml"
    file.write_text("\n".join(blocks))

    assert len(load_faults(file)) == 2
