"""`rackwright simulate redfish` as a process: it tells its URL, serves, and ends cleanly on a signal."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulators.cli import simulate
from simulators.login import DEFAULT_PASSWORD
from tests.simulators.conftest import SYSTEM, basic

COMMAND = [sys.executable, "-c", "from simulators.cli import simulate; simulate()", "redfish"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_leaves_with_zero(number: signal.Signals) -> None:
    with running("--http") as (process, url):
        with urllib.request.urlopen(f"{url}/redfish/v1/") as answer:
            root = json.load(answer)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)

    assert root["Vendor"] == "Rackwright"
    assert process.returncode == 0
    assert errors == ""


def test_user_password_and_faults_come_from_options_and_files(tmp_path: Path) -> None:
    password, faults = tmp_path / "password", tmp_path / "faults.toml"
    password.write_text("file-password\n")
    faults.write_text('[[faults]]\npath = "*/Systems/1"\nset = { "/PowerState" = "PoweringOn" }\n')

    with running("--http", "--user", "root", "--password-file", str(password), "--faults", str(faults)) as (_, url):
        request = urllib.request.Request(url + SYSTEM, headers=basic("root", "file-password"))
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["PowerState"] == "PoweringOn"


def test_the_login_is_printed_once_it_serves_and_a_password_that_was_chosen_is_not(tmp_path: Path) -> None:
    with running("--http") as (process, url):
        assert process.stdout is not None
        login = process.stdout.readline().strip()
        user, password = login.removeprefix("login ").split(", password ")
        with urllib.request.urlopen(urllib.request.Request(url + SYSTEM, headers=basic(user, password))) as answer:
            assert answer.status == 200
    (tmp_path / "password").write_text("file-password")
    with running("--http", "--password-file", str(tmp_path / "password")) as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "login admin\n"


def test_the_default_password_is_no_word_and_fits_every_protocol() -> None:
    assert re.search(r"[a-z]", DEFAULT_PASSWORD)
    assert re.search(r"[A-Z]", DEFAULT_PASSWORD)
    assert re.search(r"\d", DEFAULT_PASSWORD)
    assert 8 <= len(DEFAULT_PASSWORD) <= 16


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--tree", "{tmp}"], "has no folder 'redfish'"),
        (["--faults", "{tmp}/bad.json"], "holds no rules"),
        (["--password-file", "{tmp}/empty"], "write the password into its first line"),
        (["--cert", "{tmp}/bad.json"], "give both or none"),
        (["--first-address", "192.0.2.1"], "loopback addresses only"),
        (["--behaviour", "commodore"], "'commodore' is not one of"),
    ],
)
def test_wrong_options_end_with_a_clear_message(tmp_path: Path, arguments: list[str], expected: str) -> None:
    (tmp_path / "bad.json").write_text('"text"')
    (tmp_path / "empty").write_text("")

    result = CliRunner().invoke(simulate, ["redfish", *(word.format(tmp=tmp_path) for word in arguments)])

    assert result.exit_code != 0
    assert expected in result.output


def test_help_lists_the_simulators() -> None:
    result = CliRunner().invoke(simulate, ["--help"])

    assert result.exit_code == 0
    assert "Serve one or many simulated Redfish BMCs." in result.output
