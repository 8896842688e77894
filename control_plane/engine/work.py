"""The work on some workflows in one transaction: their rows are read together, changed in memory, stored together.

So a batch of transitions costs few statements, however many workflows it moves. What a transition decides is decided
for one workflow alone; `Work` only sees to it that reading and writing is shared.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from control_plane.commands import get_commands
from control_plane.engine.records import StepRow, WorkflowRow
from control_plane.engine.rows import (
    Grip,
    load_step,
    load_steps,
    load_upcoming,
    lock_held,
    store_steps,
    store_workflows,
)
from control_plane.engine.tally import TALLY
from control_plane.events import NewEvent, publish_all
from control_plane.records import CommandRow
from control_plane.store import Transaction

__all__ = ["Work"]


class Work:
    """Rows under way in `tx`. Nothing is stored before `flush`, which whoever made it must call.

    Statements that go straight to the database and touch the rows of a workflow, or write events, go through
    `direct`, so that they see what was changed before them and keep its order.
    """

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        """For reading what is not among the rows here: nodes, agents, sessions."""
        self._steps: dict[tuple[str, int], StepRow] = {}
        self._upcoming: dict[str, StepRow | None] = {}
        self._commands: dict[tuple[str, str], CommandRow] = {}
        self._changed_workflows: dict[str, WorkflowRow] = {}
        self._changed_steps: dict[tuple[str, int], StepRow] = {}
        self._events: list[NewEvent] = []
        self._now: int | None = None

    def hold(self, asked: Iterable[tuple[str, Grip]], *, patient: bool = True) -> Mapping[str, WorkflowRow]:
        """The workflows that this worker still holds, locked; with what a look at them needs read ahead.

        `patient`: rows that others have locked are waited for; otherwise those workflows are left out.
        """
        held = lock_held(self.tx, asked, patient=patient)
        in_flight = [(row.id, row.step_seq) for row in held.values() if row.step_seq is not None]
        if in_flight:
            self._steps = {(step.workflow_id, step.seq): step for step in load_steps(self.tx, in_flight)}
            self._read_commands()
        free = [row.id for row in held.values() if row.step_seq is None]
        if free:
            upcoming = load_upcoming(self.tx, free)
            self._upcoming = {workflow_id: upcoming.get(workflow_id) for workflow_id in free}
        return held

    def _read_commands(self) -> None:
        wanted = {step.command_id for step in self._steps.values() if step.command_id is not None}
        if wanted:
            for row in get_commands(self.tx, sorted(wanted)):
                self._commands[row.tenant_id, row.id] = row

    def now(self) -> int:
        if self._now is None:
            self._now = self.tx.now()
        return self._now

    def step(self, workflow_id: str, seq: int) -> StepRow:
        """A step as it is now, with what was changed here."""
        key = (workflow_id, seq)
        return self._changed_steps.get(key) or self._steps.get(key) or load_step(self.direct(), workflow_id, seq)

    def upcoming(self, workflow_id: str) -> StepRow | None:
        """The next pending row of a workflow that nothing was changed of."""
        if workflow_id not in self._upcoming:
            return load_upcoming(self.direct(), [workflow_id]).get(workflow_id)
        return self._upcoming[workflow_id]

    def command(self, workflow: WorkflowRow, step: StepRow) -> CommandRow | None:
        """The step's command as it was when the workflow was locked; None when retention has removed it."""
        return self._commands.get((workflow.tenant_id, step.command_id or ""))

    def save_workflow(self, workflow: WorkflowRow) -> WorkflowRow:
        """Notes what is to be stored of a workflow, and when that was."""
        saved = msgspec.structs.replace(workflow, updated_at=self.now())
        self._changed_workflows[saved.id] = saved
        return saved

    def save_step(self, step: StepRow) -> StepRow:
        """Notes what is to be stored of a step."""
        self._changed_steps[step.workflow_id, step.seq] = step
        return step

    def publish(self, tenant_id: str, subject: str, kind: str, data: dict[str, object] | msgspec.Struct) -> None:
        """Notes an event; they are stored in this order."""
        self._events.append(NewEvent(tenant_id, subject, kind, data))

    def direct(self) -> Transaction:
        """The transaction, with everything stored in it that was noted so far."""
        self.flush()
        return self.tx

    def flush(self) -> None:
        """Stores what was noted."""
        steps, self._changed_steps = self._changed_steps, {}
        if steps:
            store_steps(self.tx, steps.values())
            self._steps |= steps
        workflows, self._changed_workflows = self._changed_workflows, {}
        if workflows:
            store_workflows(self.tx, workflows.values())
        events, self._events = self._events, []
        if events:
            publish_all(self.tx, events)
            self.tx.after_commit(partial(TALLY.count, [event.type for event in events]))
