"""Planted secrets, a site at work with things going wrong, and then a search of everything that it left behind."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.tokens import ApiToken
from protocol.join_token import JoinToken
from simulators.redfish import FaultRule, RedfishServerThread
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PASSWORD = "planted-Passw0rd-8261"
WRONG = "planted-wr0ng-one-5527"


@pytest.fixture
def bmc() -> Iterator[RedfishServerThread]:
    with RedfishServerThread(users={"admin": PASSWORD}, tls=True) as server:
        yield server


def test_no_secret_is_left_anywhere_by_a_site_at_work(tmp_path: Path, bmc: RedfishServerThread) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    plane, agent = ControlPlaneProcess(folder), AgentProcess(folder)
    with plane.running_for():
        token = plane.join_token()
        secrets = [
            PASSWORD,
            WRONG,
            _secret(JoinToken.parse(token)),
            _secret(ApiToken.parse(plane.token)),
            plane.token,
        ]
        agent.join(plane, token)
        agent.credential("good", "admin", PASSWORD)
        agent.credential("bad", "admin", WRONG)
        with agent.running_for():
            _work(plane, bmc)
            assert _processes_show(secrets) == []
            assert _max_core_size(agent.pid) == 0
            assert _max_core_size(plane.pid) == 0
            told = json.dumps(
                [_all(plane, verb) for verb in ("events.list", "audit.list", "commands.list", "nodes.list")]
            )
            assert [secret for secret in secrets if secret in told] == []
            agent.stop()
        plane.stop()
    assert "AUTH_BLOCKED" in told
    assert _files_with(folder, secrets) == []


def _secret(token: JoinToken | ApiToken | None) -> str:
    """By the token's own rule: a random secret may contain whatever separates it from the rest."""
    assert token is not None
    return token.secret.reveal()


def _work(plane: ControlPlaneProcess, bmc: RedfishServerThread) -> None:
    """Good and bad logins, changes, and a BMC that repeats the password in its error."""
    for name, ref in (("good", "good"), ("bad", "bad")):
        record = {"address": bmc.url, "credentialRef": ref, "tls": "first-use"}
        plane.call("nodes.create", tenantId="default", name=name, siteId="lab", bmc=record)
    assert _invoke(plane, "good", "power.setPower", {"action": "on"})["state"] == "succeeded"
    error = {
        "error": {"code": "Base.1.12.GeneralError", "message": f"user admin, password {PASSWORD}, cannot do that"}
    }
    bmc.faults.add(FaultRule(method="POST", path="*Reset", status=403, body=error, count=1))
    spoilt = _invoke(plane, "good", "power.setPower", {"action": "reset"})
    assert spoilt["state"] == "failed"
    assert "cannot do that" in json.dumps(spoilt)
    assert _invoke(plane, "bad", "power.getPower", {})["error"]["code"] == "AUTH_FAILED"
    assert _invoke(plane, "bad", "power.getPower", {})["error"]["code"] == "AUTH_BLOCKED"


def _invoke(plane: ControlPlaneProcess, node: str, operation: str, args: dict[str, object]) -> dict[str, Any]:
    return plane.call("drivers.invoke", tenantId="default", nodeId=node, operation=operation, args=args)


def _all(plane: ControlPlaneProcess, verb: str) -> dict[str, Any]:
    return plane.call(verb, tenantId="default", limit=100)


def _processes_show(secrets: list[str]) -> list[str]:
    """Processes whose command line or environment holds a secret."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                data = (folder / name).read_bytes()
                found += [f"{folder.name}/{name}" for secret in secrets if secret.encode() in data]
    return found


def _max_core_size(pid: int) -> int:
    line = next(
        line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max core file size")
    )
    soft = line.split()[4]
    return -1 if soft == "unlimited" else int(soft)


def _files_with(folder: Path, secrets: list[str]) -> list[str]:
    """Files below the folder that hold a secret; raw and as UTF-16, base64 being the vault's business alone."""
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            data = (Path(root) / name).read_bytes()
            forms = [form for secret in secrets for form in (secret.encode(), secret.encode("utf-16-le"))]
            if any(form in data for form in forms):
                found.append(str(Path(root, name).relative_to(folder)))
    return found


def test_a_wrong_password_is_tried_once_until_the_credential_changes(
    tmp_path: Path, bmc: RedfishServerThread
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    plane, agent = ControlPlaneProcess(folder), AgentProcess(folder)
    with plane.running_for():
        agent.join(plane)
        agent.credential("bmc", "admin", WRONG)
        with agent.running_for():
            record = {"address": bmc.url, "credentialRef": "bmc", "tls": "first-use"}
            plane.call("nodes.create", tenantId="default", name="m1", siteId="lab", bmc=record)
            assert _invoke(plane, "m1", "power.getPower", {})["error"]["code"] == "AUTH_FAILED"
            for _ in range(3):
                assert _invoke(plane, "m1", "power.getPower", {})["error"]["code"] == "AUTH_BLOCKED"
            agent.kill()
            agent.start()
            assert _invoke(plane, "m1", "power.getPower", {})["error"]["code"] == "AUTH_BLOCKED"
            logins = bmc.journal.count("POST", "*/Sessions")
            assert logins == 1
            agent.credential("bmc", "admin", PASSWORD)
            wait_until("the new password is used", lambda: "result" in _good(plane))
            assert bmc.journal.count("POST", "*/Sessions") == logins + 1


def _good(plane: ControlPlaneProcess) -> dict[str, Any]:
    row = _invoke(plane, "m1", "power.getPower", {})
    return row if row["state"] == "succeeded" else {}
