"""The way to the BIOS defaults: ordered once, and looked after until a reading shows that they wait for a start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.answer import Answer
from drivers.redfish.bios_request import raise_refusal
from drivers.redfish.bios_view import BiosView
from drivers.redfish.boot import unproven
from drivers.redfish.document import Document, action, action_info_uri, dig, link_target, text
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.tasks import Ending, Outcome, follow_task, words_about
from drivers.redfish.watching import comes_true
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.bios import ResetBiosResult

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["order_defaults"]

_PROOF_SECONDS = 30.0
"""How long a sign is looked for of an order that leaves none at once."""
_Look = Callable[[], Awaitable[BiosView]]


async def order_defaults(connection: RedfishConnection, before: BiosView, look: _Look, call: Call) -> ResetBiosResult:
    """Gives the order Bios.ResetBios once. `before`: the BIOS as it was read just now; `look` reads it again.

    Raises OperationError: UNSUPPORTED, CONFLICT, NOT_APPLIED (the BMC took it and reads otherwise), OUTCOME_UNKNOWN
    (the answer was lost and no reading shows that the defaults wait).
    """
    offered = action(before.document, "Bios.ResetBios")
    target = link_target(offered) if offered is not None else None
    if offered is None or target is None:
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC offers no way to the BIOS defaults (Bios.ResetBios)")
    body = await _parameters(connection, offered, call)
    answer: Answer | NoAnswer | Refused
    try:
        answer = await connection.order(target, body, call, look=before.path)
    except NoAnswer as lost:
        answer = lost
    except Refused as refused:
        if refused.certainly_not_done:
            raise_refusal(refused, "order for the BIOS defaults")
        # The order may have been carried out before the server error.
        answer = refused
    ending = Ending(Outcome.UNKNOWN)
    if isinstance(answer, Answer):
        ending = await follow_task(connection, answer, call)
    if ending.outcome is Outcome.FAILED:
        raise OperationError(
            ErrorCode.NOT_APPLIED,
            "the BMC took the order for the BIOS defaults as a task, and the task failed",
            bmc=ending.words,
            details={"task": ending.path},
        )
    if ending.outcome is Outcome.STAGED:
        return ResetBiosResult(task=ending.path, pending=True)
    if isinstance(answer, Answer):
        pending = await _shows(connection, before, answer, ending, look, call)
    else:
        pending = await _proves(before, answer, look, call)
    return ResetBiosResult(task=ending.path, pending=pending)


async def _parameters(connection: RedfishConnection, offered: Document, call: Call) -> Document:
    """The body of the order: empty, but for a parameter that must be given and has one value only (AMI MegaRAC:
    ResetType "Reset")."""
    info = await connection.find_patiently(action_info_uri(offered), call)
    body: Document = {}
    listed = dig(info, "Parameters")
    for parameter in listed if isinstance(listed, list) else []:
        name, values = text(parameter, "Name"), dig(parameter, "AllowableValues")
        if name and dig(parameter, "Required") is True and isinstance(values, list) and len(values) == 1:
            body[name] = values[0]
    return body


async def _shows(
    connection: RedfishConnection, before: BiosView, answer: Answer, ending: Ending, look: _Look, call: Call
) -> bool:
    """Whether the defaults wait for a start, after a yes. Raises NOT_APPLIED where the BMC reads otherwise."""
    watch = _Watch(before, look)
    if ending.outcome is Outcome.DONE or before.defaults_pending is None:
        # The task has said it, or nothing can show it: one look tells whether a start is still waited for.
        await comes_true(watch.sees_it, call, 0.0)
        return watch.still_waits
    if await comes_true(watch.sees_it, call, _PROOF_SECONDS):
        return watch.still_waits
    words = await words_about(connection, answer, call) or ending.words
    raise unproven(answer, "the order for the BIOS defaults", "ResetBiosToDefaultsPending still reads false", words)


async def _proves(before: BiosView, answer: NoAnswer | Refused, look: _Look, call: Call) -> bool:
    """The same after an answer that says nothing. Raises OUTCOME_UNKNOWN where no reading shows it."""
    watch = _Watch(before, look)
    if await comes_true(watch.sees_it, call, _PROOF_SECONDS):
        return watch.still_waits
    raise OperationError(
        ErrorCode.OUTCOME_UNKNOWN,
        f"the order for the BIOS defaults was sent once and had no clear answer ({answer.message}); no reading tells "
        "whether it happened",
        bmc=answer.bmc,
    ) from answer


class _Watch:
    """Looks for what the order leaves: the BMC's own word, or values that wait or have changed."""

    def __init__(self, before: BiosView, look: _Look) -> None:
        self._before = before
        self._look = look
        self._now: BiosView | None = None

    async def sees_it(self) -> bool:
        self._now = now = await self._look()
        return bool(now.defaults_pending) or now.queued != self._before.queued or now.current != self._before.current

    @property
    def still_waits(self) -> bool:
        """Taken for true where the BMC does not say: a start that was not needed does no harm."""
        return self._now is None or self._now.defaults_pending is not False or bool(self._now.pending)
