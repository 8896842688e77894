"""Answers broken in any place: each operation ends in a small result or a typed error, after few requests.

What an operation reads is seen by running it once; then Hypothesis breaks one or several of those answers, and the
operation is run again. `RACKWRIGHT_FUZZ` multiplies the number of runs.
"""

import asyncio
import copy
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.connection import RedfishConnection
from protocol.errors import OperationError
from simulators.redfish import FaultRule
from simulators.redfish.tree import OWN_TREE
from tests.drivers.ends import ended
from tests.drivers.redfish.every_operation import CHANGES, READS, perform, recorded
from tests.drivers.redfish.harness import SYSTEM, Bench, SkippingLoop, bench, without_waiting
from tests.drivers.redfish.test_every_request import NOT_HERE, is_login

RUNS = int(os.environ.get("RACKWRIGHT_FUZZ", "1"))
MOST_REQUESTS = 400
"""Beyond what the undisturbed operation asks for."""
LARGEST_RESULT = 2_000_000
"""Characters of a result as JSON; the largest true one is a BIOS with its registry."""
LARGE = 15 << 20
TREES = [
    "",
    "dell-r750-idrac9-7.10",
    "hpe-dl380a-ilo6",
    "lenovo-sr670v2-xcc",
    "nvidia-dgx-h100-ami",
    "supermicro-821ge",
]

VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**63,
        -(2**63) - 1,
        10**400,
        1e308,
        -1e308,
        0.5,
        "",
        " ",
        "null",
        "None",
        "0",
        "NaN",
    ),
    *([], {}, [None], [[]], [{}], [""], {"": None}, {"@odata.id": None}, {"@odata.id": ""}, {"@odata.id": "/"}),
    *({"@odata.id": "/redfish/v1/Systems"}, {"@odata.id": "//evil.example/x"}, {"@odata.id": "/redfish/v1/Missing"}),
    *({"@odata.id": ["/redfish/v1"]}, [{"@odata.id": "/redfish/v1/Systems/1"}] * 50, "/redfish/v1/\u0000", "\ud800"),
    *(
        "x" * 100_000,
        ["x"] * 10_000,
        "é" * 5000,
        {"target": 7},
        {"target": ["/x"]},
        "2024-13-45T99:99:99Z",
        "1" * 5000,
    ),
    *(
        "0000-00-00T00:00:00+00:00",
        "9999-12-31T23:59:59-14:00",
        "+1e9999",
        "\u202e\u0007\r\n",
        {"a": {"b": {"c": []}}},
    ),
]
"""What stands in the place of a value."""

TEXTS: list[Callable[[str], str]] = [
    lambda text: text[: len(text) // 2],
    lambda text: text[:1],
    lambda text: text + "}",
    lambda text: text.replace(":", ': NaN, "x":', 1),
    lambda text: text.replace("null", "Infinity").replace("true", "-Infinity"),
    lambda text: "[" * 100_000 + text,
    lambda text: '{"a":' * 50_000 + "1" + "}" * 50_000,
    lambda text: text[:-1] + ', "Members": null, "Members": {"x": 1}, "@odata.id": 5, "@odata.id": "/x"}',
    lambda text: text[:-1] + ', "Name": "' + "x" * 10_000_000 + '"}',
    lambda text: text[:-1] + ', "Count": ' + "9" * 4_000 + "}",
    lambda text: text[:-1] + ', "Id": 1e400, "Status": -1e400}',
    lambda text: "",
    lambda text: "null",
    lambda text: "[]",
    lambda text: f"[{text}]",
    lambda text: '"' + "x" * 1000 + '"',
    lambda text: "<html><body>Service unavailable</body></html>",
    lambda text: '{"error": {"@Message.ExtendedInfo": [null, 5, {"MessageId": 7, "MessageArgs": "x"}], "code": []}}',
    lambda text: "\ufeff" + text,
    lambda text: text.replace("a", "\u0000", 3),
]
"""What becomes of a whole answer."""


def places(document: Any, at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every place in a document, as JSON pointers in parts."""
    found = [at] if at else []
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        found += places(value, (*at, str(key)))
    return found


def spoiled(draw: st.DrawFn, text: str) -> str:
    """An answer with something wrong in it."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(TEXTS))(text)
    document = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        everywhere = places(document)
        if not everywhere:
            break
        *way, last = draw(st.sampled_from(everywhere))
        holder = document
        for step in way:
            holder = holder[int(step) if isinstance(holder, list) else step]
        key: Any = int(last) if isinstance(holder, list) else last
        if draw(st.integers(0, 3)) == 0 and isinstance(holder, dict):
            holder.pop(key)
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return json.dumps(document)


class BrokenAnswers(dict[str, str]):
    """The broken answers by their paths; shown shortened where a test fails."""

    def __repr__(self) -> str:
        return repr({path: text if len(text) < 2000 else f"{text[:2000]}…" for path, text in self.items()})


@st.composite
def broken_answers(draw: st.DrawFn, answers: Mapping[str, str]) -> BrokenAnswers:
    paths = draw(st.lists(st.sampled_from(sorted(answers)), min_size=1, max_size=3, unique=True))
    return BrokenAnswers({path: spoiled(draw, answers[path]) for path in paths})


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await body()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(wrapped())


def folder_of(tree: str, shared: Path) -> Path:
    return shared / "mockups" / tree if tree else OWN_TREE


async def bounded(operation: str, bmc: Bench, most: int, image: Path) -> None:
    """It ends as it should, whatever it met."""
    clock = asyncio.get_running_loop().time
    started = clock()
    end = await ended(perform(operation, bmc, image=image))
    if isinstance(end, OperationError):
        assert "failed in the driver" not in end.message, end.message[:2000]
        assert len(str(end)) + len(repr(end.details)) < 50_000
    else:
        assert len(json.dumps(end, ensure_ascii=False).encode()) < LARGEST_RESULT
    # What waits for an effect, such as a firmware update for a quarter of an hour, looks every second.
    assert len(bmc.requests()) <= most + MOST_REQUESTS + 4 * (clock() - started)


def answers_to(operation: str, folder: Path, image: Path) -> tuple[dict[str, str], int]:
    """What the operation reads on this tree, by path, and how many requests it makes."""
    answers: dict[str, str] = {}
    count = 0

    async def body() -> None:
        nonlocal count
        async with bench(recorded(folder)) as bmc:
            await ended(perform(operation, bmc, image=image))
            for entry in bmc.bmc.journal.entries("GET"):
                document = bmc.bmc.state.document(entry.path)
                if document is not None and (not is_login(entry) or entry.path.rstrip("/") == "/redfish/v1"):
                    answers[entry.path] = json.dumps(document)
            count = len(bmc.requests())

    run(body)
    return answers, count


def fuzz(operation: str, folder: Path, image: Path, examples: int) -> None:
    answers, most = answers_to(operation, folder, image)

    @settings(
        max_examples=examples * RUNS,
        deadline=None,
        database=None,
        derandomize=RUNS == 1,
        suppress_health_check=list(HealthCheck),
    )
    @given(broken_answers(answers))
    def broken(broken_now: BrokenAnswers) -> None:
        async def body() -> None:
            rules = [FaultRule(method="GET", path=path, status=200, body=text) for path, text in broken_now.items()]
            async with bench(recorded(folder), faults=rules) as bmc:
                await bounded(operation, bmc, most, image)

        run(body)

    broken()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "bmc-2.14.0.bin"
    file.write_bytes(b"firmware" * 100)
    return file


@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", READS)
def test_a_reading_of_broken_answers_ends_in_a_result_or_a_typed_error(operation: str, image: Path) -> None:
    fuzz(operation, OWN_TREE, image, 12)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", [operation for operation in CHANGES if operation not in NOT_HERE])
def test_a_change_after_broken_readings_ends_in_a_result_or_a_typed_error(operation: str, image: Path) -> None:
    fuzz(operation, OWN_TREE, image, 6)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tree", TREES[1:])
@pytest.mark.parametrize("operation", READS)
def test_a_reading_of_a_recorded_tree_with_broken_answers_ends_so_too(
    operation: str, tree: str, shared: Path, image: Path
) -> None:
    fuzz(operation, folder_of(tree, shared), image, 2)


ANSWERS = st.sampled_from(
    [
        *(
            "",
            "null",
            "[]",
            "[" * 50_000,
            "<html>",
            '{"error": 5}',
            '{"error": {"@Message.ExtendedInfo": {"x": []}}}',
        ),
        *('{"@odata.id": 7}', '{"TaskState": ["New"], "@odata.type": "#Task.v1_0_0.Task"}', '{"TaskMonitor": {}}'),
        '{"error": {"code": "' + "x" * 100_000 + '", "message": "' + "y" * 1_000_000 + '"}}',
        '{"error": {"@Message.ExtendedInfo": '
        + json.dumps([{"MessageId": f"X.1.0.M{n}"} for n in range(5000)])
        + "}}",
        '{"a@Message.ExtendedInfo": ' + "[" * 900 + "]" * 900 + "}",
        '{"Boot": ' * 400 + '{"x@Message.ExtendedInfo": [{"Message": "deep"}]}' + "}" * 400,
    ]
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", [operation for operation in CHANGES if operation not in NOT_HERE])
def test_a_change_that_is_answered_with_nonsense_ends_so_too(operation: str, image: Path) -> None:
    _, most = answers_to(operation, OWN_TREE, image)

    @settings(
        max_examples=8 * RUNS,
        deadline=None,
        database=None,
        derandomize=RUNS == 1,
        suppress_health_check=list(HealthCheck),
    )
    @given(ANSWERS, st.sampled_from([200, 201, 202, 204, 400, 403, 404, 409, 412, 500, 503]), st.booleans())
    def nonsense(answer: str, status: int, executed: bool) -> None:
        async def body() -> None:
            where = "/redfish/v1/[!S]*" if operation == "config.rotatePassword" else "/redfish/v1/*"
            rules = [
                FaultRule(method="POST", path="*/SessionService/Sessions"),
                FaultRule(method="POST,PATCH,DELETE", path=where, status=status, body=answer, execute=executed),
            ]
            async with bench(recorded(None), faults=rules) as bmc:
                await bounded(operation, bmc, most, image)

        run(body)

    nonsense()


@without_waiting
async def test_one_operation_is_told_so_much_and_no_more() -> None:
    large = FaultRule(method="GET", path=SYSTEM, merge={"Description": "x" * LARGE})
    clock = asyncio.get_running_loop().time
    async with bench(recorded(None), faults=[large]) as bmc:
        connection = RedfishConnection(bmc.target, bmc.drivers.environment)
        call = Call("inspect.getInventory", clock() + 60)
        for _ in range(4):
            await connection.get(SYSTEM, call)
        with pytest.raises(OperationError, match="more than 64 MiB"):
            await connection.get(SYSTEM, call)
        # Ordinary answers are no part of it, and another operation begins anew.
        await connection.get("/redfish/v1/Managers/1", call)
        await connection.get(SYSTEM, Call("inspect.getInventory", clock() + 60))
        await connection.aclose()


def test_the_messages_of_an_error_are_few_and_short_whatever_was_sent() -> None:
    notes = [{"MessageId": "x" * 10_000, "Message": "y" * 10_000, "MessageArgs": ["z" * 10_000] * 1000}] * 5000
    said = messages.bmc_messages(messages.notes_of({"error": {"@Message.ExtendedInfo": notes}}))
    assert len(msgspec.json.encode(said)) < 50_000
