"""docs/support.md says what the drivers do now, and `management.qualify` says the same by reading alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from drivers.ssh.shells import SHELLS, shell_at
from tests.drivers.redfish.every_operation import recorded
from tests.drivers.redfish.harness import SkippingLoop, bench
from tests.drivers.redfish.test_mockups import TREES
from tests.support import FAMILIES, FILE, OTHERS, Verdict, cached_tree, document

TRIED = [tree for members in (*FAMILIES.values(), *OTHERS.values()) for tree in members.values() if tree]
EMPTY_READINGS = frozenset(
    {"virtual-media.listMedia", "raid.getRaid", "firmware.getFirmware", "management.getSensors"}
)
"""They list nothing, or the little that other resources tell, where a BMC has no place for them."""


def test_every_recorded_tree_has_its_place_in_the_table() -> None:
    assert sorted(TRIED) == sorted(TREES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tree", TREES)
def test_every_operation_ends_well_or_says_why_it_cannot(tree: str, shared: Path) -> None:
    trials = cached_tree(shared / "mockups" / tree)
    assert all(trial.words for trial in trials.values() if trial.verdict is not Verdict.YES)
    assert sum(trial.verdict is Verdict.YES for trial in trials.values()) >= 15


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tree", TREES)
def test_what_qualify_says_by_reading_comes_true_when_it_is_done(tree: str, shared: Path) -> None:
    folder = shared / "mockups" / tree
    said: dict[str, str] = {}

    async def qualify() -> None:
        async with bench(recorded(folder)) as bmc:
            report: list[dict[str, Any]] = (await bmc("management.qualify"))["operations"]
            said.update({line["operation"]: line["support"] for line in report})

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(qualify())
    trials = cached_tree(folder)
    assert [name for name, trial in trials.items() if said[name] == "supported" and trial.verdict is Verdict.NO] == []
    promised_not = [
        name for name, trial in trials.items() if said[name] == "unsupported" and trial.verdict is Verdict.YES
    ]
    assert set(promised_not) <= EMPTY_READINGS


def test_every_command_line_in_the_table_is_one_that_the_console_was_opened_on() -> None:
    from tests.drivers.ssh.test_console import VENDORS

    tried = {shell.who for line, _ in VENDORS.values() if (shell := shell_at(line.prompt)) is not None}
    assert tried == {shell.who for shell in SHELLS}


@pytest.mark.timeout(300)
def test_the_file_says_what_was_found(shared: Path) -> None:
    assert FILE.read_text() == document(shared / "mockups"), "write it anew: python -m tests.support"
