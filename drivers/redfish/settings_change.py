"""Changing settings of the BMC: one request per resource where that goes, each field read back, and told exactly.

Where a request for several fields is refused, each is sent alone, so that one that is refused hinders no other and
the BMC's words stand beside the right one.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.answer import Answer
from drivers.redfish.bmc_settings import Change, Wish, merge
from drivers.redfish.boot import patch_when_ready, unproven
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.tasks import words_about
from drivers.redfish.watching import HOPELESS, comes_true
from protocol.errors import BmcMessage, ErrorCode, OperationError

__all__ = ["Report", "apply_wishes", "attempt"]

_READ_BACK_SECONDS = 30.0
_TRIED_SECONDS = 5.0
"""The same where there is another way."""
_ENDING = (HOPELESS - {ErrorCode.UNSUPPORTED, ErrorCode.LICENSE_REQUIRED}) | {
    ErrorCode.UNREACHABLE,
    ErrorCode.TIMEOUT,
    ErrorCode.BUSY,
}
"""After these nothing more is tried: the BMC cannot be spoken to."""


@dataclass(slots=True)
class Report:
    """What became of each field."""

    changed: list[str] = field(default_factory=list)
    failed: dict[str, OperationError] = field(default_factory=dict)
    not_tried: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """The BMC cannot be spoken to any more."""
        return any(error.code in _ENDING for error in self.failed.values())

    def raise_for_failures(self) -> None:
        """Raises the first failure's kind, with what was changed and what was not, each with the BMC's own words."""
        if not self.failed:
            return
        first = next(iter(self.failed.values()))
        parts = [f"{name} was not changed ({error.message})" for name, error in self.failed.items()]
        parts += [f"{name} was not tried" for name in self.not_tried]
        parts += [f"{name} was changed" for name in self.changed]
        words: list[BmcMessage] = []
        for error in self.failed.values():
            words += [message for message in error.bmc if message not in words]
        raise OperationError(
            first.code,
            "; ".join(parts),
            bmc=words,
            details={
                "changed": list(self.changed),
                "failed": {
                    name: {
                        "code": error.code.value,
                        "message": error.message,
                        "bmc": [{"id": word.id, "text": word.text} for word in error.bmc],
                    }
                    for name, error in self.failed.items()
                },
                "notTried": list(self.not_tried),
            },
        ) from first


async def attempt(report: Report, name: str, work: Callable[[], Awaitable[bool]]) -> None:
    """Does one thing of its own and notes what became of it; `work` says whether anything was changed."""
    if report.is_over:
        report.not_tried.append(name)
        return
    try:
        if await work():
            report.changed.append(name)
    except OperationError as error:
        report.failed[name] = error


async def apply_wishes(connection: RedfishConnection, wishes: list[Wish], call: Call, report: Report) -> None:
    """Grants the wishes one resource after the other, in their order."""
    for wish in wishes:
        if not wish.ways:
            report.failed[wish.field] = OperationError(
                ErrorCode.UNSUPPORTED, "this BMC has no place for it that Redfish or its maker names"
            )
    open_wishes = [wish for wish in wishes if wish.ways]
    while open_wishes:
        path = open_wishes[0].ways[0].path
        together = [wish for wish in open_wishes if wish.ways[0].path == path]
        open_wishes = [wish for wish in open_wishes if wish not in together]
        if report.is_over:
            report.not_tried += [wish.field for wish in together]
            continue
        call.progress(f"changing {', '.join(wish.field for wish in together)}", None)
        for wish in await _grant_together(connection, together, call, report):
            await attempt(report, wish.field, partial(_grant, connection, wish, call))


async def _grant_together(
    connection: RedfishConnection, wishes: list[Wish], call: Call, report: Report
) -> list[Wish]:
    """Sends the wishes for one resource in one request; hands back those that must be tried alone."""
    if len(wishes) == 1:
        return wishes
    body: Document = {}
    for wish in wishes:
        merge(body, wish.ways[0].body)
    path = wishes[0].ways[0].path
    try:
        await patch_when_ready(lambda: connection.patch(path, body, call), call)
    except NoAnswer:
        # Alone, each is looked at before it is sent.
        pass
    except Refused as refused:
        if refused.code in _ENDING:
            report.failed.update({wish.field: refused for wish in wishes})
            return []
    except OperationError as error:
        report.failed.update({wish.field: error for wish in wishes})
        return []
    left = list(wishes)

    async def all_hold() -> bool:
        now = await connection.get(path, call)
        left[:] = [wish for wish in wishes if not wish.ways[0].holds(now)]
        return not left

    try:
        await comes_true(all_hold, call, 2.0)
    except OperationError as error:
        report.failed.update({wish.field: error for wish in wishes})
        return []
    report.changed += [wish.field for wish in wishes if wish not in left]
    return left


async def _grant(connection: RedfishConnection, wish: Wish, call: Call) -> bool:
    """One wish by the first way that works. Raises what the best way met, where none does."""
    first: OperationError | None = None
    for way in wish.ways:
        seconds = _READ_BACK_SECONDS if way is wish.ways[-1] else _TRIED_SECONDS
        try:
            return await _go(connection, wish.field, way, call, seconds)
        except OperationError as error:
            first = first or error
            if error.code in _ENDING or not _is_elsewhere(error):
                raise first from None
    assert first is not None
    raise first


async def _go(connection: RedfishConnection, name: str, way: Change, call: Call, seconds: float) -> bool:
    known = await connection.get(way.path, call)
    if way.holds(known):
        return True
    answer: Answer | NoAnswer
    try:
        answer = await patch_when_ready(lambda: connection.patch(way.path, way.body, call, known=known), call)
    except NoAnswer as failure:
        answer = failure

    async def is_done() -> bool:
        return way.holds(await connection.get(way.path, call))

    if isinstance(answer, Answer) and messages.is_not_writable(messages.notes_of(answer.said())):
        # A yes in the status, and a no in its words.
        seconds = 0.0
    if not await comes_true(is_done, call, seconds):
        words = await words_about(connection, answer, call)
        raise unproven(answer, f"the change of {name}", f"{way.path} does not read so", words)
    return True


def _is_elsewhere(error: OperationError) -> bool:
    """Whether another place, or another form, may take what this one did not."""
    if isinstance(error, Refused):
        return error.absent or error.status == 400 or error.code is ErrorCode.UNSUPPORTED
    return error.code is ErrorCode.NOT_APPLIED
