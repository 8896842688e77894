"""Every operation, disturbed at each of its requests in turn: nothing is done twice, no session is left behind.

Each test runs the operation once undisturbed, to see how many requests it makes, and then once for each of them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, OperationError
from simulators.redfish import Drop, FaultRule, ServiceOptions
from simulators.redfish.documents import Answer, Request
from simulators.redfish.journal import JournalEntry
from tests.drivers.ends import ended
from tests.drivers.redfish.every_operation import CHANGES, OWN, perform, recorded
from tests.drivers.redfish.harness import SESSIONS, Bench, bench, without_waiting

NOT_HERE = frozenset({"config.exportConfig", "config.importConfig"})
"""Dell's own: our own tree has neither."""
HERE = [operation for operation in OWN if operation not in NOT_HERE]
CHANGES_HERE = [operation for operation in CHANGES if operation not in NOT_HERE]
SETTLED = frozenset({ErrorCode.OUTCOME_UNKNOWN, ErrorCode.NOT_APPLIED, ErrorCode.TIMEOUT, ErrorCode.BMC_ERROR})
"""How a change may end whose answer was lost."""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "bmc-2.14.0.bin"
    file.write_bytes(b"firmware" * 1000)
    return file


@asynccontextmanager
async def own_bmc(**options: Any) -> AsyncIterator[Bench]:
    async with bench(recorded(None), **options) as bmc:
        yield bmc


def is_login(entry: JournalEntry | Request) -> bool:
    return entry.path.rstrip("/") in (SESSIONS, "/redfish/v1", "/redfish/v1/SessionService") or (
        entry.path.startswith(f"{SESSIONS}/")
    )


async def requests_of(operation: str, image: Path) -> list[JournalEntry]:
    """What the operation asks for when nothing disturbs it."""
    async with own_bmc() as bmc:
        await perform(operation, bmc, image=image)
        return [entry for entry in bmc.bmc.journal if not is_login(entry)]


def before_each_request(bmc: Bench, act: Callable[[Request], None]) -> None:
    """`act` is called before the BMC carries a request out."""
    service = bmc.bmc.service
    answer = service.answer

    def watched(request: Request) -> tuple[Answer, Any]:
        act(request)
        return answer(request)

    service.answer = watched  # type: ignore[method-assign]


def at_request(bmc: Bench, number: int, act: Callable[[], None]) -> None:
    """`act` is called before the BMC carries out its request of that number; logins are not counted."""
    seen = 0

    def count(request: Request) -> None:
        nonlocal seen
        if not is_login(request):
            seen += 1
            if seen == number:
                act()

    before_each_request(bmc, count)


def acts(requests: Iterable[JournalEntry]) -> Counter[str]:
    """The acts that the BMC carried out: what its nature does not make harmless when it is done twice."""
    return Counter(
        f"{entry.method} {entry.path} {entry.body}"
        for entry in requests
        if entry.executed and entry.status != 401 and entry.method in ("POST", "DELETE") and not is_login(entry)
    )


def orders(requests: Iterable[JournalEntry]) -> Counter[str]:
    """The same without their bodies, which may hold what is made anew each time, such as a certificate."""
    found: Counter[str] = Counter()
    for act, times in acts(requests).items():
        found[" ".join(act.split(" ", 2)[:2])] += times
    return found


def acts_of(requests: list[JournalEntry]) -> Iterator[tuple[int, JournalEntry]]:
    """The changes among the requests, each with its number among those of the same method and path."""
    seen: Counter[tuple[str, str]] = Counter()
    for entry in requests:
        if entry.method != "GET":
            yield seen[entry.method, entry.path], entry
            seen[entry.method, entry.path] += 1


LOST = {
    "the connection is cut": {"drop": Drop.AFTER},
    "the answer is an hour late": {"answer_late": 3600.0},
    "the answer is cut off and no JSON": {"status": 502, "execute": True, "body": "<html>Bad Gateway</html>"},
}


@pytest.mark.case("B28", "B29")
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
@pytest.mark.parametrize("operation", CHANGES_HERE)
@without_waiting
async def test_b28_an_act_whose_answer_is_lost_is_done_once(
    operation: str, lost: dict[str, Any], image: Path
) -> None:
    undisturbed = await requests_of(operation, image)
    for number, change in acts_of(undisturbed):
        rule = FaultRule(method=change.method, path=change.path, after=number, count=1, **lost)
        async with own_bmc(faults=[rule]) as bmc:
            end = await ended(perform(operation, bmc, image=image))
            assert not isinstance(end, OperationError) or end.code in SETTLED, (change.path, end)
            once = acts(undisturbed)
            assert [act for act, times in acts(bmc.bmc.journal).items() if times > max(1, once[act])] == []
            assert [entry.path for entry in bmc.bmc.journal.entries("POST") if "If-Match" in entry.headers] == []


@pytest.mark.case("B32")
@pytest.mark.parametrize("operation", HERE)
@without_waiting
async def test_b32_a_session_that_ends_in_the_middle_costs_one_login_and_nothing_else(
    operation: str, image: Path
) -> None:
    undisturbed = await requests_of(operation, image)
    async with own_bmc() as bmc:
        expected = await perform(operation, bmc, image=image)
        logins = bmc.bmc.state.sessions_created
    for number in range(1, len(undisturbed) + 1):
        async with own_bmc() as bmc:
            at_request(bmc, number, bmc.bmc.state.end_sessions)
            result = await perform(operation, bmc, image=image)
            assert without_times(result) == without_times(expected), undisturbed[number - 1].path
            assert bmc.bmc.state.sessions_created <= logins + 1
            assert orders(bmc.bmc.journal) <= orders(undisturbed)
            await bmc.drivers.aclose()
            assert bmc.bmc.state.open_sessions == []


def without_times(result: object) -> object:
    """A result without what differs from one run to the next."""
    if isinstance(result, dict):
        return {
            key: without_times(value)
            for key, value in result.items()
            if key not in ("time", "csr", "publicKey", "fingerprint", "secondsAway")
        }
    return [without_times(item) for item in result] if isinstance(result, list) else result


@pytest.mark.case("B32")
@pytest.mark.parametrize("when", ["before it is carried out", "after it was carried out"])
@pytest.mark.parametrize("operation", HERE)
@without_waiting
async def test_a_cancel_in_the_middle_of_any_request_leaves_no_session_and_no_lock(
    operation: str, when: str, image: Path
) -> None:
    undisturbed = await requests_of(operation, image)
    late: dict[str, Any] = {"latency": 8.0} if when.startswith("before") else {"answer_late": 8.0}
    for number in range(len(undisturbed) + 2):
        async with own_bmc(faults=[FaultRule(after=number, count=1, **late)]) as bmc:
            running = asyncio.create_task(perform(operation, bmc, image=image))
            while len(bmc.bmc.journal) <= number and not running.done():
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            running.cancel()
            await asyncio.wait({running})
            # The proof of a new password has a session of its own.
            assert len(bmc.bmc.state.open_sessions) <= 1 + (operation == "config.rotatePassword")
            if operation != "config.rotatePassword":
                assert (await bmc("power.getPower"))["state"] in ("on", "off", "poweringOff")
            await bmc.drivers.aclose()
            await asyncio.sleep(60)
            assert bmc.bmc.state.open_sessions == [], number


@pytest.mark.parametrize("operation", HERE)
@without_waiting
async def test_a_connection_that_is_cut_at_any_reading_is_made_anew(operation: str, image: Path) -> None:
    undisturbed = await requests_of(operation, image)
    readings: Counter[str] = Counter()
    for entry in undisturbed:
        if entry.method != "GET":
            continue
        rule = FaultRule(method="GET", path=entry.path, after=readings[entry.path], count=1, drop=Drop.AFTER)
        readings[entry.path] += 1
        async with own_bmc(faults=[rule]) as bmc:
            await perform(operation, bmc, image=image)


@without_waiting
async def test_over_a_thousand_operations_one_of_four_session_slots_is_in_use(image: Path) -> None:
    async with own_bmc(options=ServiceOptions(max_sessions=4)) as bmc:
        most = 0

        def look(_request: Request) -> None:
            nonlocal most
            most = max(most, len(bmc.bmc.state.open_sessions))

        before_each_request(bmc, look)
        reads = [operation for operation in HERE if operation not in CHANGES]
        changes = ["power.setPower", "boot.setBootDevice", "virtual-media.insertMedia", "management.setIndicator"]
        done = 0
        while done < 1000:
            beside = [perform(operation, bmc, image=image) for operation in (*reads, *changes)]
            await asyncio.gather(*beside)
            done += len(beside)
            await asyncio.sleep(90 if done % 5 == 0 else 1)
        assert most == 1
        await bmc.drivers.aclose()
        assert bmc.bmc.state.open_sessions == []
        assert len(bmc.requests("DELETE", f"{SESSIONS}/*")) == bmc.bmc.state.sessions_created
