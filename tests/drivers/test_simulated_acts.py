"""The acts of machines that outlive a process: what was done is counted, however the process ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drivers import Target, ainvoke, simulated

MACHINE = Target(address="simulated://m1")

_RESET_FOR_EVER = """
import asyncio, sys
from drivers import Target, ainvoke
asyncio.run(ainvoke(Target(address="simulated://m1"), "power.setPower", {"action": "reset"}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "machines"
    monkeypatch.setenv(simulated.STATE_VARIABLE, str(place))
    return place


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "m1.acts").read_text().splitlines()]


async def test_each_executed_change_is_one_line_and_reads_leave_none(folder: Path) -> None:
    await ainvoke(MACHINE, "power.getPower")
    assert not (folder / "m1.acts").exists()
    await ainvoke(MACHINE, "power.setPower", {"action": "off"})
    await ainvoke(MACHINE, "power.getPower")
    await ainvoke(MACHINE, "boot.setBootDevice", {"device": "pxe"})
    assert [line["operation"] for line in lines(folder)] == ["power.setPower", "boot.setBootDevice"]
    assert lines(folder)[0]["pid"] == os.getpid()


async def test_a_machine_is_found_again_as_it_was_left(folder: Path) -> None:
    await ainvoke(MACHINE, "power.setPower", {"action": "off"})
    simulated.clear()
    assert (await ainvoke(MACHINE, "power.getPower"))["state"] == "off"
    assert simulated.act_counts("m1") == {"power.setPower": 1}
    assert [act.args["action"] for act in simulated.acts("m1")] == ["off"]


async def test_a_process_killed_between_the_act_and_its_answer_has_acted_exactly_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "machines.json"
    fault = {"operation": "power.setPower", "hang": True, "moment": "after", "count": 1}
    script.write_text(json.dumps({"machines": {"m1": {"faults": [fault]}}}))
    monkeypatch.setenv(simulated.SCRIPT_VARIABLE, str(script))
    with subprocess.Popen([sys.executable, "-c", _RESET_FOR_EVER]) as process:
        deadline = time.monotonic() + 30
        while not simulated.act_counts("m1"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [line["operation"] for line in lines(folder)] == ["power.setPower"]
    assert simulated.state("m1").boots == 1
    # The fault's count outlives the process too: the next call is answered.
    assert (await ainvoke(MACHINE, "power.setPower", {"action": "reset"}))["state"] == "on"
    assert simulated.act_counts("m1") == {"power.setPower": 2}


async def test_a_line_that_a_crash_cut_off_never_counted(folder: Path) -> None:
    await ainvoke(MACHINE, "power.setPower", {"action": "off"})
    with (folder / "m1.acts").open("a") as file:
        file.write('{"operation": "power.setPower", "args": {"act')
    assert simulated.act_counts("m1") == {"power.setPower": 1}
    assert (await ainvoke(MACHINE, "power.getPower"))["state"] == "off"
    await ainvoke(MACHINE, "power.setPower", {"action": "on"})
    assert [line["operation"] for line in lines(folder)] == ["power.setPower"] * 2


async def test_a_long_history_is_read_from_its_end(folder: Path) -> None:
    for _ in range(60):
        await ainvoke(MACHINE, "power.setPower", {"action": "reset"})
    assert (folder / "m1.acts").stat().st_size > 1 << 16
    assert simulated.state("m1").boots == 60
    assert simulated.act_counts("m1") == {"power.setPower": 60}


async def test_texts_that_may_hold_secrets_are_kept_by_their_length_only(folder: Path) -> None:
    await ainvoke(MACHINE, "deploy.writeImage", {"image": {"url": "https://images.example/a.raw"}})
    await ainvoke(MACHINE, "deploy.writeConfigDrive", {"userData": "password: hunter2"})
    assert "hunter2" not in (folder / "m1.acts").read_text()
    assert (folder / "m1.acts").stat().st_mode & 0o077 == 0


async def test_the_memory_of_a_machine_without_a_folder_is_bounded() -> None:
    for _ in range(1010):
        await ainvoke(MACHINE, "management.setIndicator", {"state": "on"})
    assert len(simulated.acts("m1")) == 1000
    assert simulated.act_counts("m1") == {"management.setIndicator": 1010}
    assert len([act for act in simulated.acts("m1") if act.changed]) == 0
