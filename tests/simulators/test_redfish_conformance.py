"""DMTF's validators against the simulated server over TLS: programs that nobody here wrote agree with it."""

import contextlib
import csv
import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
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
    "SERV_SSE_JSON_METRIC_REPORT_FORMAT": "there are no metric reports, which are optional",
}
NOT_TESTABLE_PREFIXES = ("SERV_SSDP_",)  # optional, and off as on most BMCs
BEAT_SECONDS = 0.5


def validator(program: str, bmc: RedfishServerThread, folder: Path, *arguments: str) -> str:
    """Runs one validator; gives what it printed. Skips where it is not installed."""
    if not (PEERS / program).exists():
        pytest.skip(f"{PEERS / program} is absent: install the 'peers' dependency group into .peers to run it")
    # A CA bundle of the environment would take the place of the validator's own choice.
    environment = {name: value for name, value in os.environ.items() if "CA_BUNDLE" not in name}
    login = ["--rhost", bmc.url, "--user", USER, "--password", PASSWORD]
    command = [str(PEERS / program)]
    if program == "rf_protocol_validator":
        command = [str(PEERS / "python"), str(Path(__file__).with_name("stream_validation.py"))]
    run = subprocess.run(
        [*command, *login, *arguments], env=environment, capture_output=True, text=True, cwd=folder, check=False
    )
    return run.stdout + run.stderr


@contextlib.contextmanager
def events_coming(bmc: RedfishServerThread) -> Iterator[None]:
    """Events on every stream, as often as a BMC in trouble sends them."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            bmc.call(lambda: bmc.state.set_health("OK"))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def faults_of_tree(bmc: RedfishServerThread, folder: Path, shared: Path) -> list[str]:
    """What the service validator finds against the schemas.

    Deprecated properties are there on purpose: machines in the field have them, and clients still read them.
    """
    schemas = shared / "redfish-schemas" / "csdl"
    if not schemas.is_dir():
        pytest.skip(f"no Redfish schemas at {schemas}")
    printed = validator(
        "rf_service_validator", bmc, folder, "--schema_directory", str(schemas), "--logdir", str(folder / "log")
    )
    logs = list((folder / "log").rglob("*.log"))
    assert logs, printed
    assert "PASS" in printed
    judged = re.findall(r" - (FAIL|WARN) - (/.*)", logs[0].read_text())
    return [text for _, text in judged if "deprecated" not in text]


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("behaviour", ["generic", "lenovo-xcc"])
def test_the_protocol_validator_finds_no_fault(behaviour: str, tmp_path: Path) -> None:
    report = ["--report-type", "tsv", "--report-dir", str(tmp_path), "--avoid-http-redirect", "--no-cert-check"]

    with RedfishServerThread(tls=True, behaviour=behaviour) as bmc, events_coming(bmc):
        printed = validator("rf_protocol_validator", bmc, tmp_path, *report)

    reports = list(tmp_path.glob("*.tsv"))
    assert reports, printed
    with reports[0].open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    counts = Counter(row["Result"] for row in rows)
    found = [row for row in rows if row["Result"] in ("FAIL", "WARN") and row["Assertion"] not in EXPLAINED]
    untested = {row["Assertion"] for row in rows if row["Result"] == "NOT_TESTED"} - NOT_TESTABLE.keys()

    assert found == []
    assert {name for name in untested if not name.startswith(NOT_TESTABLE_PREFIXES)} == set()
    assert counts["PASS"] >= 390


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_the_service_validator_finds_our_tree_true_to_the_schemas(tmp_path: Path, shared: Path) -> None:
    with RedfishServerThread(tls=True) as bmc:
        assert faults_of_tree(bmc, tmp_path, shared) == []
