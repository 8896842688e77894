"""Requests made from /openapi.json by a program that nobody here wrote (schemathesis): none makes the server fail."""

import os
import subprocess
from pathlib import Path

import pytest

from control_plane.engine.states import StepState, WorkflowState
from control_plane.store import Transaction
from rackwright.client import Client
from tests.control_plane.running import RunningControlPlane
from tests.control_plane.workflow_rows import put_workflow, step

PROGRAM = Path(__file__).resolve().parents[2] / ".peers" / "bin" / "st"
CASES = int(os.environ.get("RACKWRIGHT_OPENAPI_CASES", "20"))
"""For each verb; a nightly run asks for more."""


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_no_request_that_the_document_allows_or_forbids_makes_the_server_fail(tmp_path: Path) -> None:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is absent: install schemathesis into .peers to run it")
    with RunningControlPlane(tmp_path / "state") as plane:
        with Client(plane.url, plane.token()) as client:
            client.sites.create(name="lab")
            node_id = client.nodes.create(name="n1", site_id="lab", bmc={"address": "simulated://n1"}).id
        plane.run(plane.plane.store.write(_failed, node_id))
        words = ["run", f"{plane.url}/openapi.json", "--header", f"Authorization: Bearer {plane.token()}"]
        words += ["--checks", "not_a_server_error", "--max-examples", str(CASES), "--workers", "1", "--no-color"]
        words += ["--phases", "coverage,fuzzing", "--exclude-path-regex", "stream", "--request-timeout", "70"]
        done = subprocess.run(
            [PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False
        )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert "generated" in done.stdout


def _failed(tx: Transaction, node_id: str) -> None:
    put_workflow(tx, node_id, WorkflowState.FAILED, [step(0, state=StepState.FAILED)])
