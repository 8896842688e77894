"""The journal as a file: what programs outside the simulator can read of it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulators.cli import simulate
from simulators.ipmi.journal_file import JournalFile
from tests.simulators.ipmi_remote_console import RemoteConsole, make_bmc

SET_PASSWORD_OF_USER_2 = b"\x02\x02" + b"planted-secret\x00\x00"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bmc.journal"


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_commands_and_power_are_there_to_read_while_the_bmc_runs(file: Path) -> None:
    bmc = make_bmc(powered=False)
    with JournalFile(file) as journal:
        journal.follow(bmc, "127.0.0.1:623")
        console = RemoteConsole(bmc).open()
        console.send(6, 0x3B, b"\x04")
        console.send(0, 0x02, b"\x03")
        console.send(0, 0x02, b"\x01")
        written = lines(file)
    assert {line["bmc"] for line in written} == {"127.0.0.1:623"}
    machine = [(line["event"], line["powered"]) for line in written if "event" in line]
    assert machine == [("start", False), ("powered_on", True)]
    orders = [(line["data"], line["outcome"]) for line in written if (line.get("netfn"), line.get("cmd")) == (0, 2)]
    assert orders == [("03", 0xD5), ("01", 0)]


def test_a_password_that_is_set_is_not_written_down(file: Path) -> None:
    bmc = make_bmc()
    with JournalFile(file) as journal:
        journal.follow(bmc, "127.0.0.1:623")
        console = RemoteConsole(bmc).open()
        console.send(6, 0x3B, b"\x04")
        assert console.send(6, 0x47, SET_PASSWORD_OF_USER_2)[0] == 0
    (entry,) = [line for line in lines(file) if line.get("cmd") == 0x47]
    assert entry["data"] == "0202"
    assert b"planted".hex() not in file.read_text()


def test_a_file_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(simulate, ["ipmi", "--journal", str(tmp_path / "missing" / "journal")])
    assert result.exit_code == 1
    assert "choose another --journal" in result.output
