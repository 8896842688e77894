"""Requests made from /openapi.json by a program that nobody here wrote (schemathesis): none makes the server fail."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from control_plane.engine.states import StepState, WorkflowState
from control_plane.store import Transaction
from rackwright.client import Client
from tests.control_plane.running import RunningControlPlane
from tests.control_plane.workflow_rows import put_command, put_workflow, step

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).resolve().parents[2] / ".peers" / "bin" / "st"
CASES = int(os.environ.get("RACKWRIGHT_OPENAPI_CASES", "20"))
"""For each verb; a nightly run asks for more."""
TENANT = "acme"
PROFILE = {"profile": "look", "drivers": {"power": "simulated"}, "steps": [{"use": "power.getPower", "on": "site"}]}
SPENT = {"nodes/delete": "nodeId", "agents/revoke": "agentId", "tokens/revoke": "tokenId"}
"""Verbs after which the thing is not there any more: each is given one that nobody else needs."""


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[RunningControlPlane]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is absent: make test installs the peers")
    with RunningControlPlane(tmp_path / "state") as running:
        yield running


def test_no_request_that_the_document_allows_or_forbids_makes_the_server_fail(
    plane: RunningControlPlane, tmp_path: Path
) -> None:
    fill(plane, tmp_path)
    said = requests_from(f"{plane.url}/openapi.json", plane, tmp_path)
    assert " generated, " in said


def test_no_request_about_what_is_really_there_makes_the_server_fail(
    plane: RunningControlPlane, tmp_path: Path
) -> None:
    known, spent = fill(plane, tmp_path)
    with urllib.request.urlopen(f"{plane.url}/openapi.json") as answer:
        document = json.load(answer)
    file = tmp_path / "narrowed.json"
    file.write_text(json.dumps(narrowed(document, known, spent)))
    said = requests_from(str(file), plane, tmp_path)
    assert " generated, " in said
    # A node can be removed once; every later request for it is rightly told that it is not there.
    assert found_nothing(said) <= {"POST /api/compute/nodes/delete"}


def requests_from(document: str, plane: RunningControlPlane, folder: Path) -> str:
    """What the program says of its run. Fails with it when a request made the server fail."""
    words = ["run", document, "--url", plane.url, "--header", f"Authorization: Bearer {plane.token()}"]
    words += ["--checks", "not_a_server_error", "--max-examples", str(CASES), "--workers", "1", "--no-color"]
    words += ["--phases", "coverage,fuzzing", "--exclude-path-regex", "stream", "--request-timeout", "70"]
    done = subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    return done.stdout


def fill(plane: RunningControlPlane, folder: Path) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """One of everything. By the name of a request's field, the values that are known; and those that may be spent."""
    with Client(plane.url, plane.token()) as client:
        client.sites.create(name="lab")
        agents = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            joining = client.join_tokens.create(site_id="lab")
            agents.append(plane.agent(joining.token, folder / name).agent.id)
        open_joining = client.join_tokens.create(site_id="lab")
        client.sites.update(site_id="lab", agent_id=agents[0])
        nodes = [
            client.nodes.create(name=name, site_id="lab", bmc={"address": f"simulated://{name}"}).id
            for name in ("n1", "n2")
        ]
        for description in ("before", "after"):
            client.profiles.create(document={**PROFILE, "description": description})
        extra = client.tokens.create(name="extra", permissions=["compute:nodes:read"])
        ended = client.drivers.invoke(node_id=nodes[0], operation="power.getPower")
    workflows, command = plane.run(plane.plane.store.write(_put_workflows, nodes[0], agents[0]))
    known: dict[str, list[Any]] = {
        "tenantId": [TENANT],
        "siteId": ["lab"],
        "agentId": [agents[0]],
        "nodeId": [nodes[0]],
        "profileId": ["look"],
        "profile": ["look"],
        "version": [1, 2],
        "before": [1],
        "after": [2],
        "workflowId": workflows,
        "commandId": [ended.id, command],
        "joinTokenId": [open_joining.id],
        "operation": ["power.getPower", "power.setPower"],
        "waitMs": [0, 10],
    }
    return known, {"nodeId": [nodes[1]], "agentId": [agents[1]], "tokenId": [extra.id]}


def found_nothing(said: str) -> set[str]:
    """The verbs of which the program says that nearly all requests were answered with 404."""
    _, _, listed = said.partition("Missing test data:")
    block = listed.strip().split("\n\n")
    return {line.strip("- ") for line in block[1].splitlines()} if listed else set()


def narrowed(
    document: dict[str, Any], known: Mapping[str, list[Any]], spent: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """The document where identifiers can only be those that exist, so that requests get past the search for them."""
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        if "post" not in methods:
            continue
        content = methods["post"]["requestBody"]["content"]["application/json"]
        request = schemas[content["schema"]["$ref"].rpartition("/")[2]]
        used_up = SPENT.get(path.removeprefix("/api/compute/"))
        properties = dict(request["properties"])
        for field in properties.keys() & (known.keys() | spent.keys()):
            values = spent[field] if field == used_up else known.get(field)
            if values is not None:
                properties[field] = {"enum": values}
        content["schema"] = {**request, "properties": properties}
    return document


def _put_workflows(tx: Transaction, node_id: str, agent_id: str) -> tuple[list[str], str]:
    failed = put_workflow(tx, node_id, WorkflowState.FAILED, [step(0, state=StepState.FAILED)], tenant=TENANT)
    running = put_workflow(tx, node_id, WorkflowState.RUNNING, [step(0)], tenant=TENANT)
    return [failed, running], put_command(tx, node_id, agent_id, running).id
