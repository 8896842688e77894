"""DMTF's validators against the simulated server over TLS: programs that nobody here wrote agree with it."""

import csv
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from simulators.redfish import RedfishServerThread
from tests.simulators.conftest import PASSWORD, USER

REPOSITORY = Path(__file__).resolve().parents[2]
PEERS = REPOSITORY / ".peers" / "bin"

# Assertions that may fail or warn, each with the reason. There is none, and none may come without one.
EXPLAINED: dict[str, str] = {}
# What the validator cannot test here, each with the reason.
NOT_TESTABLE = {
    "PROTO_REDIRECT_ENFORCES_TARGET_PRIVS": "the service redirects nothing",
    "REQ_DATA_MOD_ERRORS": "no POST of the validator's own run fails",
    "REQ_HEADERS_ACCEPT": "there is no openapi.yaml, which is optional",
    "RESP_HEADERS_CONTENT_TYPE": "there is no openapi.yaml, which is optional",
    "RESP_STATUS_INTERNAL_SERVER_ERROR": "no request makes the service fail",
    "SEC_SESSION_TERMINATION_SIDE_EFFECTS": "it needs a stream of server-sent events, which is optional",
}
NOT_TESTABLE_PREFIXES = ("SERV_SSDP_", "SERV_SSE_")  # optional; SSDP is off, as on most BMCs, and SSE is absent


def validate(program: str, tmp_path: Path, *arguments: str) -> str:
    """Runs one validator against our own tree; gives what it printed. Skips where it is not installed."""
    if not (PEERS / program).exists():
        pytest.skip(f"{PEERS / program} is absent: install the 'peers' dependency group into .peers to run it")
    # A CA bundle of the environment would take the place of the validator's own choice.
    environment = {name: value for name, value in os.environ.items() if "CA_BUNDLE" not in name}
    with RedfishServerThread(tls=True) as bmc:
        login = ["--rhost", bmc.url, "--user", USER, "--password", PASSWORD]
        run = subprocess.run(
            [str(PEERS / program), *login, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    return run.stdout + run.stderr


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_the_protocol_validator_finds_no_fault(tmp_path: Path) -> None:
    report = ["--report-type", "tsv", "--report-dir", str(tmp_path), "--avoid-http-redirect", "--no-cert-check"]

    printed = validate("rf_protocol_validator", tmp_path, *report)

    reports = list(tmp_path.glob("*.tsv"))
    assert reports, printed
    with reports[0].open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    counts = Counter(row["Result"] for row in rows)
    found = [row for row in rows if row["Result"] in ("FAIL", "WARN") and row["Assertion"] not in EXPLAINED]
    untested = {row["Assertion"] for row in rows if row["Result"] == "NOT_TESTED"} - NOT_TESTABLE.keys()

    assert found == []
    assert {name for name in untested if not name.startswith(NOT_TESTABLE_PREFIXES)} == set()
    assert counts["PASS"] >= 370


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_the_service_validator_finds_our_tree_true_to_the_schemas(tmp_path: Path, shared: Path) -> None:
    schemas = shared / "redfish-schemas" / "csdl"
    if not schemas.is_dir():
        pytest.skip(f"no Redfish schemas at {schemas}")

    printed = validate(
        "rf_service_validator", tmp_path, "--schema_directory", str(schemas), "--logdir", str(tmp_path / "log")
    )

    logs = list((tmp_path / "log").rglob("*.log"))
    assert logs, printed
    judged = re.findall(r" - (FAIL|WARN) - (/.*)", logs[0].read_text())
    # Deprecated properties are there on purpose: machines in the field have them, and clients still read them.
    assert [text for _, text in judged if "deprecated" not in text] == []
    assert "PASS" in printed
