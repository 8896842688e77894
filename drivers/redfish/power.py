"""Power: reading it with one request, and changing it with exactly one order whose effect is then looked at."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from drivers.driver import Call
from drivers.redfish import messages, reset_types
from drivers.redfish.answer import Answer
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import (
    Document,
    action,
    action_info_uri,
    allowed_values,
    allowed_values_of_action_info,
    text,
)
from drivers.redfish.failures import NoAnswer, NotSent, Refused
from drivers.redfish.reset_types import SETTLED, meaning
from drivers.redfish.tasks import Ending, Outcome, follow_task, words_about
from drivers.redfish.watching import comes_true
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.power import PowerAction, PowerReading, PowerState, SetPower, SetPowerResult

__all__ = ["RedfishPower"]

_BUTTON = "PushPowerButton"
"""Pressed twice, it undoes what it did."""
_SETTLE_SECONDS = 90.0
"""How long a state that is neither on nor off is waited for before an order is given all the same."""
_REFUSED_SECONDS = 120.0
"""How long an order is repeated that the BMC refuses in its present state (iDRAC 10: about 60 s after off)."""
_UNMOVED_SECONDS = 120.0
"""How long a machine may stay as it was after an order that the BMC took."""
_PROOF_SECONDS = 45.0
"""How long a sign is looked for of an order whose answer was lost."""
_SERVER_ERROR_SECONDS = 20.0
"""How long the effect is looked for of an order that ended in a server error."""
_TASK_SECONDS = 30.0
"""How long the task of a restart is followed: its effect is watched anyway."""
_MARGIN = 0.25
_LEADS_TO = {PowerState.POWERING_ON: PowerState.ON, PowerState.POWERING_OFF: PowerState.OFF}
_ONCE = frozenset({PowerAction.RESET, PowerAction.CYCLE, PowerAction.NMI})


class _PowerView(msgspec.Struct, frozen=True, gc=False):
    """The one property of a system that a poll needs; the rest of the document is skipped unread."""

    state: str | None = msgspec.field(name="PowerState", default=None)


_decode = msgspec.json.Decoder(_PowerView).decode


class RedfishPower:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_power(self, arguments: Nothing, call: Call) -> PowerReading:
        """The power state. Once the system is known this costs one request."""
        raw = await self._raw_state(call)
        return PowerReading(state=meaning(raw), raw=raw)

    async def set_power(self, arguments: SetPower, call: Call) -> SetPowerResult:
        """Brings the power to where it is asked, or restarts the host; each order is sent once.

        Raises OperationError: UNSUPPORTED, CONFLICT (refused all the time), NOT_APPLIED (taken, but nothing
        changed), OUTCOME_UNKNOWN (the answer was lost and no reading can tell).
        """
        order = _Order(self._connection, call, arguments)
        match arguments.action:
            case PowerAction.ON:
                return await order.bring_to(PowerState.ON, PowerAction.ON)
            case PowerAction.OFF:
                return await order.bring_to(PowerState.OFF, PowerAction.OFF)
            case PowerAction.SOFT_OFF:
                return await order.shut_down(arguments.soft_timeout)
            case PowerAction.NMI:
                return await order.interrupt()
            case _:
                return await order.restart(arguments.action)

    async def _raw_state(self, call: Call) -> str | None:
        service = self._connection.service
        if service.system_path is None:
            return text(await service.system(call), "PowerState")
        try:
            answer = await self._connection.read(service.system_path, call)
        except Refused as refused:
            if refused.status not in (404, 410):
                raise
            return text(await service.system(call), "PowerState")
        with contextlib.suppress(msgspec.DecodeError):
            state = _decode(answer.body).state
            if state:
                return state[:100]
        return text(self._connection.document_of(answer), "PowerState")


class _Order:
    """One change of power under way."""

    def __init__(self, connection: RedfishConnection, call: Call, arguments: SetPower) -> None:
        self._connection = connection
        self._call = call
        self._arguments = arguments
        self._clock = asyncio.get_running_loop().time
        self._listed: list[str] | None = None
        self._answer: Answer | None = None
        """What the BMC answered to the order that it took."""

    async def bring_to(self, wanted: PowerState, by: PowerAction) -> SetPowerResult:
        """To on or to off; nothing is sent where it is there already, or on its way."""
        system, state = await self._settled(wanted)
        if state is wanted:
            return SetPowerResult(state=state, changed=False)
        verb, changed = await self._send(system, by, lambda now: self._is_or_becomes(now, wanted))
        if self._arguments.wait:
            await self._until(wanted, meaning(system.get("PowerState")), verb)
            return SetPowerResult(state=wanted, changed=changed, verb_used=verb)
        return SetPowerResult(state=await self._last_state(), changed=changed, verb_used=verb)

    async def shut_down(self, soft_timeout: float) -> SetPowerResult:
        """Asks the operating system to end; cuts the power when it has not within `soft_timeout` seconds."""
        system, state = await self._settled(PowerState.OFF)
        if state is PowerState.OFF:
            return SetPowerResult(state=state, changed=False)
        deadline = self._clock() + soft_timeout
        verb = await self._ask_to_shut_down(system)
        if verb is not None:
            if not self._arguments.wait:
                return SetPowerResult(state=await self._last_state(), changed=True, verb_used=verb)
            if await self._reaches(PowerState.OFF, deadline):
                return SetPowerResult(state=PowerState.OFF, changed=True, verb_used=verb)
            if self._clock() < deadline:
                raise OperationError(
                    ErrorCode.TIMEOUT,
                    f"the host is still shutting down, and the operation's time ended before softTimeout "
                    f"({soft_timeout:g} s): nothing was forced. Give the operation more time",
                    details={"verb": verb},
                )
            self._call.progress(f"the host did not shut down within {soft_timeout:g} s; cutting the power", None)
        forced = await self.bring_to(PowerState.OFF, PowerAction.OFF)
        return msgspec.structs.replace(forced, changed=True, forced=forced.verb_used is not None)

    async def _ask_to_shut_down(self, system: Document) -> str | None:
        """The reset type by which the host was asked; None where the BMC takes no such order."""
        try:
            verb, _ = await self._send(
                system, PowerAction.SOFT_OFF, lambda now: self._is_or_becomes(now, PowerState.OFF), proves=False
            )
        except OperationError as error:
            unsure = isinstance(error, Refused) and not error.certainly_not_done
            if unsure and error.code is not ErrorCode.BUSY:
                return "GracefulShutdown"
            if error.code not in (ErrorCode.UNSUPPORTED, ErrorCode.CONFLICT, ErrorCode.BMC_ERROR):
                raise
            self._call.progress(f"the BMC takes no graceful shutdown ({error.message}); cutting the power", None)
            return None
        return verb

    async def interrupt(self) -> SetPowerResult:
        system, state = await self._settled(PowerState.ON)
        if state is PowerState.OFF:
            raise OperationError(ErrorCode.CONFLICT, "the machine is off: an NMI reaches nobody. Switch it on first")
        verb, _ = await self._send(system, PowerAction.NMI, None)
        return SetPowerResult(state=await self._last_state(), changed=True, verb_used=verb)

    async def restart(self, wanted: PowerAction) -> SetPowerResult:
        """Restarts a running host; a host that is off is switched on, which is what both reset and cycle end in."""
        system, state = await self._settled(PowerState.ON)
        if state is PowerState.OFF:
            return await self.bring_to(PowerState.ON, PowerAction.ON)
        allowed = await self._allowed(system)
        verbs = reset_types.candidates(wanted, allowed)
        if not verbs or self._connection.service.manners.restart_by_off_and_on:
            return await self._off_and_on(system)
        verb, _ = await self._send(system, wanted, lambda now: reset_types.is_after(system, now))
        # The order is given: whatever fails from here on must not look as if it could be given again.
        if self._arguments.wait:
            ending = await self._ending_of_task()
            if ending is not None and ending.outcome is Outcome.FAILED:
                raise OperationError(
                    ErrorCode.NOT_APPLIED,
                    f"the BMC took {verb} as a task, and the task failed",
                    bmc=ending.words,
                    details={"verb": verb},
                )
            with contextlib.suppress(OperationError):
                if await self._reaches(PowerState.ON, self._clock() + _UNMOVED_SECONDS):
                    return SetPowerResult(state=PowerState.ON, changed=True, verb_used=verb)
        now = await self._last_state()
        if self._arguments.wait and now is PowerState.OFF:
            # A power cycle passes through off, and not every BMC comes back from it.
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"the BMC took {verb}, and the machine has stayed off since: switch it on",
                details={"verb": verb, "state": now.value},
            )
        return SetPowerResult(state=now, changed=True, verb_used=verb)

    async def _off_and_on(self, system: Document) -> SetPowerResult:
        off, _ = await self._send(system, PowerAction.OFF, lambda now: self._is_or_becomes(now, PowerState.OFF))
        try:
            await self._until(PowerState.OFF, PowerState.ON, off)
            now = await self._system()
            verb, _ = await self._send(now, PowerAction.ON, lambda later: self._is_or_becomes(later, PowerState.ON))
            if self._arguments.wait:
                await self._until(PowerState.ON, PowerState.OFF, verb)
                return SetPowerResult(state=PowerState.ON, changed=True, verb_used=verb)
        except OperationError as error:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"the machine was ordered off for its restart and is not known to be on again: {error.message}",
                bmc=error.bmc,
                details={"verb": off, "cause": error.code.value},
            ) from error
        return SetPowerResult(state=await self._last_state(), changed=True, verb_used=verb)

    async def _send(
        self,
        system: Document,
        wanted: PowerAction,
        done: Callable[[Document], bool] | None,
        *,
        proves: bool = True,
    ) -> tuple[str, bool]:
        """Gives one order, and says by which reset type and whether it was this order that did it.

        A refusal is looked into: where the machine is as wanted, that is success; where the BMC is between two
        states, it is asked again; where it does not know the reset type, the next one is tried. An answer that is
        lost is made up for by reading; not so without `proves`, where the caller watches the machine anyway.
        """
        verbs = reset_types.candidates(wanted, await self._allowed(system), text(system, "PowerState"))
        if not verbs:
            listed = ", ".join(await self._allowed(system))
            raise OperationError(ErrorCode.UNSUPPORTED, f"this BMC has no reset type for {wanted}; it lists {listed}")
        target = reset_types.target_of(system, self._connection.service.system_path or "")
        give_up = self._clock() + _REFUSED_SECONDS
        last: Refused | None = None
        renewed = False
        for verb in verbs:
            pause = 1.0
            while True:
                self._call.check(f"sending {verb}")
                try:
                    self._answer = await self._connection.act("POST", target, {"ResetType": verb}, self._call)
                    return verb, True
                except NoAnswer as failure:
                    if proves:
                        await self._prove(verb, done, failure)
                    return verb, True
                except NotSent:
                    raise
                except Refused as refused:
                    last = refused
                if await self._is_done_nevertheless(done, last):
                    return verb, last.status >= 500
                if _is_unknown_verb(last):
                    break
                if last.status == 401 and not renewed:
                    # The look has logged in again.
                    renewed = True
                    continue
                if (wanted in _ONCE or verb == _BUTTON) and not last.certainly_not_done:
                    raise last
                wait = last.wait if last.wait is not None else pause
                until = min(give_up, self._call.deadline - _MARGIN)
                if not last.transient or last.status == 401 or self._clock() + wait > until:
                    raise last
                await self._call.sleep(wait, f"the BMC refused {verb}")
                pause = min(pause * 2, 10.0)
                # Somebody else may have done it meanwhile, and the button would undo it.
                if await self._is_done_nevertheless(done, last):
                    return verb, False
        if last is None:
            raise OperationError(ErrorCode.UNSUPPORTED, f"this BMC has no reset type for {wanted}")
        raise last

    async def _ending_of_task(self) -> Ending | None:
        """The end of the order's task; None where it is not known after a while."""
        with contextlib.suppress(OperationError):
            return await follow_task(self._connection, self._answer, self._call, patience=_TASK_SECONDS)
        return None

    async def _is_done_nevertheless(self, done: Callable[[Document], bool] | None, refused: Refused) -> bool:
        """Looks whether the machine is as wanted in spite of the refusal; a server error may be wrong for a while."""
        if done is None:
            return False

        async def is_done() -> bool:
            return done(await self._system())

        return await comes_true(is_done, self._call, 0.0 if refused.certainly_not_done else _SERVER_ERROR_SECONDS)

    async def _prove(self, verb: str, done: Callable[[Document], bool] | None, failure: NoAnswer) -> None:
        """The answer was lost: looks for a sign that the order was carried out, and never gives it again."""
        if done is not None:
            self._call.progress(f"no answer to {verb}: looking whether it happened", None)

            async def is_done() -> bool:
                return done(await self._system())

            with contextlib.suppress(OperationError):
                if await comes_true(is_done, self._call, _PROOF_SECONDS):
                    return
        raise OperationError(
            ErrorCode.OUTCOME_UNKNOWN,
            f"{verb} was sent once and had no answer ({failure.message}); no reading tells whether it happened",
            details={"verb": verb},
        ) from failure

    async def _allowed(self, system: Document) -> list[str]:
        """The reset types that the BMC offers: from the annotation, else from ActionInfo; maybe none."""
        if self._listed is None:
            offered = action(system, reset_types.RESET)
            self._listed = allowed_values(offered, "ResetType")
            if offered is not None and not self._listed:
                info = await self._connection.find_patiently(action_info_uri(offered), self._call)
                self._listed = allowed_values_of_action_info(info, "ResetType")
        return self._listed

    async def _settled(self, wanted: PowerState) -> tuple[Document, PowerState]:
        """The system once its power is on or off, or has been neither for a while."""
        give_up = min(self._clock() + _SETTLE_SECONDS, self._clock() + self._call.remaining / 2)
        system = await self._system()
        pause = 0.25
        while True:
            state = meaning(system.get("PowerState"))
            on_its_way = _LEADS_TO.get(state)
            if state in SETTLED or (text(system, "PowerState") or "").lower() == "paused":
                return system, state
            if not self._arguments.wait and on_its_way is wanted:
                return system, wanted
            if self._clock() + pause > give_up:
                return system, state
            await self._call.sleep(pause, "waiting for a clear power state")
            pause = min(pause * 1.5, 3.0)
            system = await self._system()

    async def _until(self, wanted: PowerState, before: PowerState, verb: str) -> None:
        """Waits for the state; raises NOT_APPLIED when it does not come."""
        now = before

        async def has_moved() -> bool:
            nonlocal now
            now = await self._state()
            return now is not before

        moved = await comes_true(has_moved, self._call, _UNMOVED_SECONDS)
        # The reading that shows the state proves it: another one would prove no more.
        if moved and (now is wanted or await self._reaches(wanted, self._call.deadline)):
            return
        now = await self._last_state()
        raise OperationError(
            ErrorCode.NOT_APPLIED,
            f"the BMC took {verb}, but the power reads {now.value} and not {wanted.value}",
            bmc=await words_about(self._connection, self._answer, self._call),
            details={"verb": verb, "state": now.value},
        )

    async def _reaches(self, wanted: PowerState, deadline: float) -> bool:
        async def is_there() -> bool:
            return await self._state() is wanted

        return await comes_true(is_there, self._call, deadline - self._clock())

    async def _state(self) -> PowerState:
        return meaning((await self._system()).get("PowerState"))

    async def _last_state(self) -> PowerState:
        try:
            return await self._state()
        except OperationError:
            return PowerState.UNKNOWN

    async def _system(self) -> Document:
        return await self._connection.service.system(self._call)

    @staticmethod
    def _is_or_becomes(system: Document, wanted: PowerState) -> bool:
        state = meaning(system.get("PowerState"))
        return _LEADS_TO.get(state, state) is wanted


def _is_unknown_verb(refused: Refused) -> bool:
    return refused.status in (400, 404, 405, 422, 501) and (
        messages.is_value_refused(refused.notes)
        or messages.is_unsupported(refused.notes)
        or (refused.status != 400 and not refused.notes)
    )
