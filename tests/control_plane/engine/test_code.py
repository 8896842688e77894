"""What the code of a step may do wrong: its step fails and says why; engine and database go on."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from control_plane.engine.context import StepContext, StepFailed
from control_plane.engine.states import StepState
from control_plane.engine.transitions import Then
from control_plane.store import Transaction
from tests.control_plane.engine.rig import Rig, work

Behaviour = Callable[[StepContext], Awaitable[dict[str, object] | None]]


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    @property
    def code(self) -> str:
        raise RuntimeError("no code")


def raising(error: Callable[[], BaseException]) -> Behaviour:
    async def code(context: StepContext) -> None:
        raise error()

    return code


async def with_a_bad_statement(context: StepContext) -> None:
    await context.read(_nonsense)


def _nonsense(tx: Transaction) -> None:
    tx.one("SELECT nonsense")


async def with_a_bad_key(context: StepContext) -> dict[str, object]:
    return await context.await_command(kind="task.run", payload={"script": "true"}, key="a\0b" * 2_000)


ODD_TEXT: Any = ValueError("not a text")
ODD_CODE: Any = 7


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (raising(lambda: FileNotFoundError("no file image-\udcff")), r"FileNotFoundError: no file image-\udcff"),
        (raising(lambda: StepFailed("the disk \ud800 is bad", code="DISK\ud800")), r"the disk \ud800 is bad"),
        (raising(lambda: StepFailed(ODD_TEXT)), "not a text"),
        (raising(lambda: StepFailed("why", code=ODD_CODE)), "why"),
        (raising(_Unspeakable), "_Unspeakable: (_Unspeakable, which cannot be shown: RuntimeError)"),
        (raising(lambda: SystemExit(3)), "SystemExit: 3"),
        (raising(lambda: RuntimeError("left\0right")), "RuntimeError: left\0right"),
        (with_a_bad_statement, "StoreMisuse: "),
    ],
    ids=["bytes", "surrogates", "no text", "no code", "unspeakable", "exit", "nul", "statement"],
)
async def test_whatever_code_raises_fails_its_step_with_words_that_can_be_stored(
    rig: Rig, code: Behaviour, said: str
) -> None:
    """What cannot be stored would leave the step running, and its code would be run again until the deadline."""
    rig.code["work"] = code
    workflow_id = await rig.start(work())
    assert (await rig.run(workflow_id)).then is Then.OVER
    step = await rig.step(workflow_id, "work")
    assert (step.state, rig.runs["work"]) == (StepState.FAILED, 1)
    assert step.error is not None
    assert step.error.message.startswith(said)
    assert step.error.code


async def test_a_command_key_that_the_database_refuses_fails_the_step(rig: Rig) -> None:
    rig.code["work"] = with_a_bad_key
    workflow_id = await rig.start(work())
    await rig.run(workflow_id)
    # SQLite takes it.
    refused = rig.store.dialect == "postgresql"
    expected = StepState.FAILED if refused else StepState.WAITING
    assert ((await rig.step(workflow_id, "work")).state, rig.runs["work"]) == (expected, 1)


async def test_a_message_of_ten_megabytes_is_cut_short(rig: Rig) -> None:
    rig.code["work"] = raising(lambda: RuntimeError("x" * 10_000_000))
    workflow_id = await rig.start(work())
    await rig.run(workflow_id)
    error = (await rig.step(workflow_id, "work")).error
    assert error is not None
    assert error.message.startswith("RuntimeError: xxx")
    assert error.message.endswith(" …")
    assert len(error.message) < 10_000


@pytest.mark.parametrize(
    ("asked", "waits"), [(-1_000, 0), (0.5, 0), (1_500.7, 1_500), (10**30, 600_000)], ids=["past", "0.5", "1500", "∞"]
)
async def test_a_time_to_run_again_is_whole_milliseconds_up_to_the_deadline(rig: Rig, asked: Any, waits: int) -> None:
    rig.code["work"] = raising(lambda: StepContext.not_ready(None, asked))  # type: ignore[arg-type]
    workflow_id = await rig.start(work())
    marked = await rig.advance(workflow_id)
    assert await rig.settle(marked, await rig.execute(marked))
    assert (await rig.step(workflow_id, "work")).wake_at == rig.clock.now + waits


@pytest.mark.parametrize("asked", ["5", float("nan"), float("inf")])
async def test_a_time_to_run_again_that_is_no_time_fails_the_step(rig: Rig, asked: Any) -> None:
    rig.code["work"] = raising(lambda: StepContext.not_ready(None, asked))  # type: ignore[arg-type]
    workflow_id = await rig.start(work())
    await rig.run(workflow_id)
    error = (await rig.step(workflow_id, "work")).error
    assert error is not None
    assert "which is no time" in error.message


async def test_long_and_short_results_are_stored_alike(rig: Rig) -> None:
    """A long one goes by a statement of its own."""
    results: dict[str, dict[str, object]] = {
        "long": {"text": 'a "quoted" \\ line\0\n' * 9_000},
        "odd": {"nan": float("nan"), "large": 2**64 - 1, "larger": 2**70, "yes": True, "": None, "nul\0": "\0"},
        "short": {},
    }

    def giving(name: str) -> Behaviour:
        async def code(context: StepContext) -> dict[str, object]:
            return results[name]

        return code

    rig.code |= {name: giving(name) for name in results}
    workflow_id = await rig.start(*(work(name) for name in results))
    await rig.run(workflow_id)
    steps = (await rig.look(workflow_id)).steps
    assert steps["long"].result == results["long"]
    assert steps["odd"].result == {**results["odd"], "nan": None}
    assert steps["short"].result == {}
