"""The consoles' logs: each line with its time, rotated, for the agent alone, and never in the way."""

import asyncio
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.console_log import ConsoleLogs, LogFile

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
STAMP = b"2026-11-29T12:00:00.000000Z "


def log(path: Path, size: int = 1_000_000, count: int = 3) -> LogFile:
    return LogFile(path, size, count, lambda: NOW)


def test_each_line_has_the_time_at_which_it_began(tmp_path: Path) -> None:
    file = log(tmp_path / "n.log")
    for part in (b"log", b"in: root\r", b"\nPassword: ", b"\r\n\r\n# "):
        file.write(part)
    assert file.path.read_bytes() == (
        STAMP + b"login: root\r\n" + STAMP + b"Password: \r\n" + STAMP + b"\r\n" + STAMP + b"# "
    )


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = log(tmp_path / "n.log")
    file.write(b"x")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(("count", "kept"), [(1, 0), (2, 1), (3, 2)])
def test_full_files_are_numbered_and_the_oldest_forgotten(tmp_path: Path, count: int, kept: int) -> None:
    file = log(tmp_path / "n.log", 100, count)
    for number in range(5):
        file.write(b"%d" % number * 100 + b"\n")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"n.log.{number}" for number in range(1, kept + 1)]
    if kept:
        assert b"4444" in (tmp_path / "n.log.1").read_bytes()


async def test_what_was_written_is_on_the_disk_when_it_is_closed(tmp_path: Path) -> None:
    logs = ConsoleLogs(tmp_path / "consoles", 1_000_000, 2, lambda: NOW)
    logs.write("node_1", b"one ")
    logs.write("node_1", b"line\n")
    logs.write("node_2", b"other\n")
    await logs.aclose()
    assert logs.path_of("node_1").read_bytes() == STAMP + b"one line\n"
    assert logs.path_of("node_2").read_bytes() == STAMP + b"other\n"
    assert stat.S_IMODE((tmp_path / "consoles").stat().st_mode) == 0o700


async def test_it_is_written_within_a_moment(tmp_path: Path) -> None:
    logs = ConsoleLogs(tmp_path / "consoles", 1_000_000, 2)
    logs.write("node_1", b"x\n")
    while not logs.path_of("node_1").exists():
        await asyncio.sleep(0.01)
    await logs.aclose()


async def test_no_log_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    logs = ConsoleLogs(tmp_path / "consoles", 1_000_000, 0)
    logs.write("node_1", b"x\n")
    await logs.aclose()
    assert not (tmp_path / "consoles").exists()


async def test_a_name_of_a_node_leads_nowhere_else(tmp_path: Path) -> None:
    logs = ConsoleLogs(tmp_path / "consoles", 1_000_000, 2)
    for name in ("../../etc/passwd", "", ".", "a/b", "n" * 300):
        path = logs.path_of(name)
        assert path.parent == tmp_path / "consoles"
        assert re.fullmatch(r"[0-9a-f]{32}\.log", path.name)
    await logs.aclose()


async def test_a_disk_that_takes_nothing_stops_no_console(tmp_path: Path) -> None:
    (tmp_path / "consoles").write_text("a file where the folder should be")
    logs = ConsoleLogs(tmp_path / "consoles", 1_000_000, 2)
    logs.write("node_1", b"x\n")
    await logs.aclose()


async def test_what_the_disk_was_too_slow_for_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.console_log._MOST_WAITING", 10)
    logs = ConsoleLogs(tmp_path / "consoles", 1_000_000, 2)
    logs.write("node_1", b"12345678\n")
    logs.write("node_1", b"more\n")
    await logs.aclose()
    text = logs.path_of("node_1").read_bytes()
    assert b"12345678" in text
    assert b"5 bytes are left out here" in text
