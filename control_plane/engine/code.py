"""Executes the code of control-plane steps, outside of every transaction, and says what came of it."""

import asyncio
import logging
import math

import msgspec

from control_plane.engine.agent_steps import (
    NoAgent,
    StepCommand,
    agent_for,
    command_end,
    command_key,
    find_command,
    relayed_key,
    send_command,
    words_of,
)
from control_plane.engine.context import DriverError, StepContext, StepFailed, StepNotReady
from control_plane.engine.records import StepError, StepRow, WorkflowRow
from control_plane.engine.registry import StepRegistry
from control_plane.engine.rejoining import presence_of, present_boot
from control_plane.engine.rows import Grip
from control_plane.engine.states import RunsOn
from control_plane.engine.timing import Timing
from control_plane.engine.transitions import Settlement, running_still
from control_plane.engine.work import Work
from control_plane.records import CommandRow
from control_plane.store import Store, StoreClosed, StoreUnavailable, Transaction
from protocol.commands import SELF_TERMINATING, TERMINAL, CommandKind, CommandState, payload_faults

__all__ = ["CodeRunner"]

_log = logging.getLogger("control_plane.engine.code")
_MAX_RESULT_BYTES = 256 * 1024
_LONGEST_MESSAGE = 8 * 1024
_LONGEST_CODE = 128
_encoder = msgspec.json.Encoder()
replace = msgspec.structs.replace


class CodeRunner:
    """Runs registered functions. Whatever they do, a `Settlement` comes back, or a store error or a cancellation."""

    def __init__(self, store: Store, registry: StepRegistry, timing: Timing) -> None:
        self._store = store
        self._registry = registry
        self._timing = timing

    async def run(self, workflow: WorkflowRow, step: StepRow, grip: Grip) -> Settlement:
        """One execution. It has no end of its own: at the step's deadline the reconciler ends it, once the database
        has it that the step is over."""
        definition = self._registry.get(step.action)
        if definition is None or definition.function is None or definition.with_ is None:
            return _failed(
                "STEP_FAILED", f"the step {step.action!r} is not registered in this worker's version any more"
            )
        try:
            arguments = msgspec.convert(step.spec.with_, definition.with_)
            result = await definition.function(self._context(workflow, step, grip), arguments)
        except StepNotReady as not_ready:
            return _waits(self._timing.step_not_ready_ms if not_ready.ms is None else not_ready.ms)
        except StepFailed as failed:
            return _failed(failed.code, failed.message)
        except (StoreUnavailable, StoreClosed):
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _failed("STEP_FAILED", "its code was cancelled from within")
        except (Exception, SystemExit) as error:
            # Also what would end this process, and then the next worker's: one step is not to stop them all.
            _log.exception("step %s of %s failed", step.id, step.workflow_id)
            return _failed(_code_of(error), f"{type(error).__name__}: {_words(error)}")
        return _checked(result)

    def _context(self, workflow: WorkflowRow, step: StepRow, grip: Grip) -> StepContext:
        assert step.deadline is not None, "a step that runs has a deadline"
        deadline = step.deadline

        async def send(
            *,
            node_id: str,
            kind: str,
            payload: dict[str, object],
            key: str | None,
            timeout_ms: int | None,
            place: RunsOn | None,
        ) -> dict[str, object]:
            found = await self._store.write(
                _find_or_send, grip, step, node_id, StepCommand(kind, payload), key, timeout_ms, place
            )
            if isinstance(found, NoAgent):
                if found.waits:
                    raise StepNotReady(self._timing.command_step_poll_ms)
                raise StepFailed(found.message, code="NO_AGENT")
            if found is None:
                # Another worker's by now, or overtaken by another execution: the row says how it stands.
                raise StepNotReady(0)
            if found.state not in TERMINAL:
                raise StepNotReady(self._timing.command_step_poll_ms)
            failure, result = command_end(found)
            if found.state is not CommandState.SUCCEEDED:
                raise DriverError(words_of(found.state, failure), "" if failure is None else failure.code)
            return result or {}

        return StepContext(
            tenant_id=workflow.tenant_id,
            workflow_id=workflow.id,
            step_id=step.id,
            action=step.action,
            attempt=step.attempt,
            node_id=workflow.node_id,
            started_ms=step.started_at or deadline - step.spec.timeout_ms,
            deadline_ms=deadline,
            key=command_key(step),
            send=send,
            read=self._store.read,
            progress=lambda message: _log.info("step %s of %s: %s", step.id, workflow.id, message),
        )


def _find_or_send(
    tx: Transaction,
    grip: Grip,
    step: StepRow,
    node_id: str,
    command: StepCommand,
    key: str | None,
    timeout_ms: int | None,
    place: RunsOn | None,
) -> CommandRow | NoAgent | None:
    """The command of this attempt and key, sent now if it never was. None when the attempt is not this worker's."""
    work = Work(tx)
    workflow = work.hold([(step.workflow_id, grip)]).get(step.workflow_id)
    present = None if workflow is None else running_still(work, workflow, step)
    if workflow is None or present is None:
        return None
    full_key = relayed_key(workflow.id, step.id, step.attempt, key)
    found = find_command(tx, workflow, node_id, full_key)
    if found is not None:
        return found
    faults = payload_faults(command.kind, command.payload)
    if faults:
        raise StepFailed(f"the command {command.kind} has faults: {'; '.join(str(fault) for fault in faults)}")
    deadline = present.deadline or tx.now()
    if timeout_ms is not None:
        deadline = min(deadline, tx.now() + timeout_ms)
    try:
        agent_id = agent_for(tx, workflow.tenant_id, node_id or None, place or _place_of(tx, command, node_id))
    except NoAgent as nobody:
        return nobody
    sent = send_command(tx, workflow, command, node_id=node_id, agent_id=agent_id, key=full_key, deadline=deadline)
    if present.spec.await_rejoin and command.kind in SELF_TERMINATING and node_id == workflow.node_id:
        work.save_step(replace(present, command_id=sent.id, rejoin=present_boot(tx, node_id)))
        work.flush()
    return sent


def _place_of(tx: Transaction, command: StepCommand, node_id: str) -> RunsOn:
    """A BMC is reached through the site's agent; everything else is done on the machine itself, and a reboot by
    whichever of its agents is there."""
    if command.kind == CommandKind.DRIVER_INVOKE:
        return RunsOn.RAMDISK if command.payload.get("driver") == "linux" else RunsOn.SITE
    if command.kind == CommandKind.SITE_OFFER_IMAGE:
        return RunsOn.SITE
    if command.kind == CommandKind.NODE_REBOOT:
        presence = presence_of(tx, node_id)
        return RunsOn.DAEMON if presence is None else RunsOn(presence.role)
    return RunsOn.DAEMON if command.kind == CommandKind.DAEMON_UPGRADE else RunsOn.RAMDISK


def _checked(result: object) -> Settlement:
    if result is None:
        return Settlement(result={})
    if not isinstance(result, dict):
        return _failed(
            "STEP_FAILED", f"its code returned {type(result).__name__} where an object or nothing is wanted"
        )
    try:
        size = len(_encoder.encode(result))
    except (TypeError, ValueError, RecursionError) as error:
        return _failed("STEP_FAILED", f"its code returned what cannot be stored as JSON: {error}")
    if size > _MAX_RESULT_BYTES:
        return _failed(
            "STEP_FAILED", f"its code returned {size} bytes, more than the {_MAX_RESULT_BYTES} that a result may have"
        )
    return Settlement(result=result)


def _waits(ms: object) -> Settlement:
    if not isinstance(ms, int | float) or not math.isfinite(ms):
        return _failed("STEP_FAILED", f"its code asked to be run again after {_words(ms)}, which is no time")
    return Settlement(not_ready_ms=max(0, int(ms)))


def _failed(code: object, message: object) -> Settlement:
    """Whatever a step's code has put into its error: what cannot be stored would have the code run again for ever."""
    return Settlement(error=StepError(code=_words(code, _LONGEST_CODE), message=_words(message)))


def _code_of(error: BaseException) -> str:
    """The error's own code, where it has one."""
    try:
        code = getattr(error, "code", None)
    except Exception:
        return "STEP_FAILED"
    return code if isinstance(code, str) and code else "STEP_FAILED"


def _words(said: object, longest: int = _LONGEST_MESSAGE) -> str:
    try:
        text = str(said)
    except Exception as error:
        text = f"({type(said).__name__}, which cannot be shown: {type(error).__name__})"
    # A file's name may hold bytes that are no characters (os.fsdecode); they are shown by their numbers.
    text = text[: longest + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= longest else text[:longest] + " …"
