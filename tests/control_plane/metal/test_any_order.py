"""Whatever operators do, in whatever order, while machines fail: no machine is shown better than it is.

Random stories of verbs, aborts, retries, recoveries and failures. After each act the table's promises hold.
"""

import asyncio
import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from control_plane.engine import verbs as engine
from control_plane.engine.states import ACTIVE
from control_plane.metal.rows import ProvisionRow
from control_plane.metal.states import AT_REST, BASES, ProvisionState
from control_plane.metal.verbs import allow_retry, get_workflow, is_moved
from control_plane.store import Transaction, migrate, open_store
from protocol.errors import RequestError
from tests.control_plane.engine.rig import make_rig
from tests.control_plane.ledger import Clock
from tests.control_plane.metal.metal_rig import BOOT, ERASE, MetalRig, bound, refused

VERBS = ("commission", "deploy", "release", "rescue")
ACTS = st.one_of(
    # To its end, in one go.
    st.sampled_from([f"do {verb}" for verb in VERBS]),
    st.sampled_from(VERBS),
    st.sampled_from(["turn", "far", "finish", "take", "abort", "workflow abort", "retry", "retry from start"]),
    st.sampled_from(["recover", "recover", "recover as it is", "maintain", "end maintenance"]),
    st.sampled_from(["boot daemon", "boot nothing"]),
)
FAILURES = st.one_of(st.none(), st.sampled_from(["eraseDisks", "insertMedia", "writeImage", "kexec", "ejectMedia"]))


LEFT_BY_RECOVERING = (ProvisionState.FAILED, ProvisionState.RESCUE, ProvisionState.RECOVERING)


class Story:
    def __init__(self, metal: MetalRig) -> None:
        self.metal = metal

    async def act(self, act: str, failure: str | None) -> None:
        metal = self.metal
        metal.first = lambda what, row: refused() if failure is not None and failure in what else None
        row = await metal.provision()
        try:
            await self._do(act, row)
        finally:
            metal.rig.clock.pass_by(1_000)
        now = await metal.provision()
        if row.state in LEFT_BY_RECOVERING and now.state is ProvisionState.DEPLOYED and act != "recover as it is":
            assert await metal.rig.store.read(_last_to_connect, metal.rig.node_id) == "daemon", act

    async def _do(self, act: str, row: ProvisionRow) -> None:
        metal, workflow_id, moved = self.metal, row.workflow_id or "", is_moved(row)
        if act in VERBS:
            await metal.begin(act)
        elif act.startswith("do "):
            await metal.do(act.removeprefix("do "))
        elif act in ("turn", "far") and moved:
            for _ in range(1 if act == "turn" else 6):
                await metal.turn(workflow_id)
        elif act == "finish" and moved:
            await metal.finish(workflow_id)
        elif act == "take":
            await metal.owner.take_all()
        elif act == "abort":
            await metal.abort("an operator")
        elif act == "workflow abort" and moved:
            await metal.rig.abort(workflow_id)
        elif act.startswith("retry"):
            await metal.rig.store.write(_retry, workflow_id, "boot" if act == "retry from start" else None)
        elif act.startswith("recover"):
            await metal.recover(as_it_is=act == "recover as it is")
        elif act in ("maintain", "end maintenance"):
            await metal.maintenance("on" if act == "maintain" else "off")
        elif act == "boot daemon":
            await metal.rig.machine.boot("daemon")
        elif act == "boot nothing":
            await metal.rig.machine.off()

    async def check(self) -> None:
        metal = self.metal
        row = await metal.provision()
        workflow = await metal.rig.store.read(get_workflow, row.workflow_id)
        if row.state not in AT_REST and row.state is not ProvisionState.MAINTENANCE:
            queued = await metal.rig.owner_queue()
            assert workflow is not None
            assert workflow.state in ACTIVE or queued, "it is shown as moved, and nothing moves it"
        if row.state in BASES:
            assert row.base is row.state
            assert row.residue is None
            assert row.cause is None
        if row.state is ProvisionState.FAILED:
            assert row.cause is not None
        if row.state in BASES and await metal.rig.store.read(_half_erased, metal.rig.node_id):
            raise AssertionError(f"an erasure was not finished, and the machine is shown as {row.state}")
        assert all(count == 1 for count in metal.rig.executed.values())


def _half_erased(tx: Transaction, node_id: str) -> bool:
    """By what the machine was asked to do, and how each release has ended."""
    rows = tx.all(
        """
        SELECT (SELECT COUNT(*) FROM commands WHERE commands.workflow_id = workflows.id
                AND commands.payload LIKE '%eraseDisks%'),
            (SELECT COUNT(*) FROM workflow_steps WHERE workflow_steps.workflow_id = workflows.id
                AND workflow_steps.phase = 'main' AND workflow_steps.state <> 'succeeded')
        FROM provision_runs AS runs
            JOIN workflows ON workflows.id = runs.workflow_id
        WHERE runs.node_id = :node AND runs.verb = 'release' ORDER BY runs.started_at, workflows.id
        """,
        {"node": node_id},
    )
    unproven = False
    for erasures, undone in rows:
        # A clean-up that failed takes nothing away from what was erased.
        unproven = (unproven or erasures > 0) and undone > 0
    return unproven


def _last_to_connect(tx: Transaction, node_id: str) -> str:
    """The role of the machine's agent that has connected last."""
    (role,) = tx.one(
        "SELECT sessions.role FROM sessions JOIN agents ON agents.id = sessions.agent_id "
        "WHERE agents.node_id = :node ORDER BY sessions.connected_at DESC, sessions.id DESC LIMIT 1",
        {"node": node_id},
    ) or ("",)
    return str(role)


def _retry(tx: Transaction, workflow_id: str, from_step: str | None) -> None:
    workflow = get_workflow(tx, workflow_id)
    if workflow is not None:
        allow_retry(tx, workflow, from_step)
        engine.retry(tx, workflow_id, from_step)


async def tell(begins: str, acts: list[tuple[str, str | None]], url: str) -> None:
    clock = Clock()
    store = open_store(url, clock=clock)
    try:
        await migrate(store)
        metal = await bound(MetalRig(await make_rig(store, clock)))
        boot: dict[str, Any] = {"id": "boot", **BOOT, "retries": 0}
        await metal.define("commission", boot, ERASE)
        await metal.define("release", boot, {**ERASE, "onFailure": "rescue"})
        await metal.force(begins, base=ProvisionState(begins))
        story = Story(metal)
        for act, failure in acts:
            # Refused, it has changed nothing, which the check shows as well as anything.
            with contextlib.suppress(RequestError):
                await story.act(act, failure)
            await story.check()
    finally:
        await store.close()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@example("deployed", [("do release", "eraseDisks"), ("finish", None), ("recover", None), ("do commission", None)])
@example("deployed", [("do rescue", None), ("boot nothing", None), ("recover", None), ("finish", None)])
@example("available", [("do deploy", "writeImage"), ("recover", None), ("do deploy", None), ("do release", None)])
@example("deployed", [("release", None), ("far", "eraseDisks"), ("abort", None), ("finish", None), ("recover", None)])
@given(st.sampled_from(sorted(BASES)), st.lists(st.tuples(ACTS, FAILURES), min_size=8, max_size=25))
def test_no_order_of_acts_makes_a_machine_look_better_than_it_is(
    begins: str, acts: list[tuple[str, str | None]]
) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(tell(begins, acts, f"sqlite://{Path(folder)}/control.db"))
