"""Awaiting the machine's return: what it is known by, and that nothing else counts (A30-A35)."""

import pytest

from control_plane.command_queue import mark_sent
from control_plane.commands import expire
from control_plane.engine import transitions
from control_plane.engine.context import StepContext
from control_plane.engine.records import Rejoin
from control_plane.engine.rejoining import Presence, presence_of
from control_plane.engine.states import StepState, WorkflowState
from control_plane.engine.transitions import Then
from control_plane.sessions import open_session
from control_plane.store import Transaction
from protocol.commands import CommandState, Ending, Outcome
from protocol.errors import Failure
from protocol.frames import Hello
from tests.control_plane.engine.rig import DONE, GATEWAY, ModelAgent, Rig, failed, kexec, power, reboot, work

WAITING = StepState.WAITING


async def state_of(rig: Rig, workflow_id: str, step_id: str) -> StepState:
    """After a look that nothing but time has asked for."""
    await rig.run(workflow_id, hinted=True)
    return (await rig.step(workflow_id, step_id)).state


@pytest.mark.case("B51")
@pytest.mark.line("A30")
async def test_a30_the_boot_and_the_role_are_recorded_when_the_command_is_sent(rig: Rig) -> None:
    workflow_id = await rig.start(kexec())
    await rig.run(workflow_id)
    assert (await rig.step(workflow_id, "kexec")).rejoin == Rejoin("boot-1", "ramdisk")


@pytest.mark.line("A30")
async def test_a30_they_are_recorded_at_the_sending_also_when_the_agent_came_long_after_the_steps_start(
    rig: Rig,
) -> None:
    workflow_id = await rig.start(reboot())
    await rig.run(workflow_id)
    assert (await rig.step(workflow_id, "reboot")).command_id is None
    await rig.machine.boot("daemon")
    # It is there for the first time. That it came is not what the command is to bring about.
    assert await state_of(rig, workflow_id, "reboot") is WAITING
    assert (await rig.step(workflow_id, "reboot")).rejoin == Rejoin("boot-2", "daemon")


@pytest.mark.line("A30")
@pytest.mark.parametrize(
    ("role", "boot"),
    [("ramdisk", "boot-2"), ("daemon", "boot-1"), ("daemon", "boot-2")],
    ids=["boot", "role", "both"],
)
async def test_a30_another_boot_or_another_role_is_the_return(rig: Rig, role: str, boot: str) -> None:
    rig.machine.ramdisk.answer = lambda row: None
    workflow_id = await rig.start(kexec())
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.machine.off()
    await getattr(rig.machine, role).connect(boot)
    assert await state_of(rig, workflow_id, "kexec") is StepState.SUCCEEDED
    step = await rig.step(workflow_id, "kexec")
    assert (step.result, step.error) == ({"bootId": boot, "role": role}, None)


@pytest.mark.line("A30")
async def test_a30_without_a_machine_at_the_sending_any_connection_is_the_return(rig: Rig) -> None:
    await rig.machine.off()
    workflow_id = await rig.start(power("on", id="on", **{"await": "rejoin"}))
    await rig.run(workflow_id)
    assert (await rig.step(workflow_id, "on")).rejoin == Rejoin(None, None)
    await rig.agents_work()
    assert await state_of(rig, workflow_id, "on") is WAITING
    await rig.machine.ramdisk.connect("boot-1")
    assert await state_of(rig, workflow_id, "on") is StepState.SUCCEEDED


@pytest.mark.line("A31")
async def test_a31_the_same_boot_in_the_same_role_is_no_return(rig: Rig) -> None:
    workflow_id = await rig.start(kexec())
    await rig.run(workflow_id)
    await rig.agents_work()
    for _ in range(3):
        await rig.machine.ramdisk.disconnect()
        await rig.machine.ramdisk.connect("boot-1")
        assert await state_of(rig, workflow_id, "kexec") is WAITING


@pytest.mark.case("B51")
@pytest.mark.line("A32")
@pytest.mark.parametrize("report", ["failed", "rejected", "cancelled", "expired", "never", "twice", "succeeded"])
async def test_a32_the_return_counts_whatever_the_command_reported(rig: Rig, report: str) -> None:
    agent = rig.machine.ramdisk
    answers = {
        "failed": failed("INTERRUPTED"),
        "rejected": Ending(Outcome.REJECTED, error=Failure("UNKNOWN_KIND", "what is this")),
        "cancelled": Ending(Outcome.CANCELLED, error=Failure("CANCELLED", "by hand")),
    }
    agent.answer = lambda row: None if report in ("never", "twice") else answers.get(report, DONE)
    workflow_id = await rig.start(kexec())
    await rig.run(workflow_id)
    if report != "expired":
        await rig.agents_work()
    if report == "twice":
        (begun,) = agent.open
        for ending in (DONE, failed()):
            await agent.report(begun, ending)
    assert await state_of(rig, workflow_id, "kexec") is WAITING
    await rig.machine.off()
    if report == "expired":
        rig.clock.pass_by(14 * 60_000)
        await rig.store.write(lambda tx: tx.run("UPDATE commands SET not_after = :now", {"now": tx.now() - 1}))
        await rig.store.write(expire, 10)
        (command,) = await rig.commands(workflow_id)
        assert command.state is CommandState.EXPIRED
    await rig.machine.boot("daemon")
    assert await state_of(rig, workflow_id, "kexec") is StepState.SUCCEEDED


@pytest.mark.line("A33")
async def test_a33_a_machine_that_came_back_and_went_away_is_not_back(rig: Rig) -> None:
    workflow_id = await rig.start(kexec())
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.machine.boot("daemon")
    await rig.machine.off()
    assert await state_of(rig, workflow_id, "kexec") is WAITING


@pytest.mark.case("B51")
@pytest.mark.line("A34")
async def test_a34_only_its_time_fails_it_and_then_its_on_failure_step_runs(rig: Rig) -> None:
    workflow_id = await rig.start(
        kexec(onFailure={"use": "power.setPower", "on": "site", "with": {"action": "reset"}})
    )
    begun = rig.clock.now
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.machine.off()
    while (look := await rig.run(workflow_id)).then is Then.WAIT and rig.clock.now < begun + 900_000:
        assert (await rig.step(workflow_id, "kexec")).state is WAITING
        rig.clock.now = look.wake_at or 0
    assert rig.clock.now == begun + 900_000
    step = await rig.step(workflow_id, "kexec")
    assert step.error is not None
    assert (step.state, step.error.code) == (StepState.FAILED, "REJOIN_TIMEOUT")
    seen = await rig.finish(workflow_id)
    assert seen.states == {"kexec": "failed", "kexec.on-failure": "succeeded"}
    assert [row.payload["args"] for row in rig.site.done] == [{"action": "reset"}]


@pytest.mark.line("A34")
async def test_a34_a_return_in_time_counts_for_a_worker_that_looks_late(rig: Rig) -> None:
    workflow_id = await rig.start(kexec())
    await rig.run(workflow_id)
    await rig.agents_work()
    await rig.machine.boot("daemon")
    rig.clock.pass_by(86_400_000)
    assert await state_of(rig, workflow_id, "kexec") is StepState.SUCCEEDED


@pytest.mark.line("A34")
async def test_a34_a_return_after_its_time_does_not_count(rig: Rig) -> None:
    workflow_id = await rig.start(kexec())
    await rig.run(workflow_id)
    await rig.agents_work()
    rig.clock.pass_by(900_001)
    await rig.machine.boot("daemon")
    assert await state_of(rig, workflow_id, "kexec") is StepState.FAILED


@pytest.mark.case("B51")
@pytest.mark.line("A35")
@pytest.mark.parametrize(
    ("use", "before", "after"),
    [
        ("boot.kexec", "ramdisk", "daemon"),
        ("node.reboot", "daemon", "daemon"),
        ("daemon.upgrade", "daemon", "daemon"),
    ],
)
async def test_a35_each_kind_that_ends_its_own_process_goes_from_end_to_end(
    rig: Rig, use: str, before: str, after: str
) -> None:
    agent: ModelAgent = getattr(rig.machine, before)
    agent.answer = lambda row: None
    await rig.machine.boot(before)
    workflow_id = await rig.start(work("first"), {"id": "go", "use": use}, work("last"))
    await rig.run(workflow_id)
    await rig.agents_work()
    assert await state_of(rig, workflow_id, "go") is WAITING
    await rig.machine.boot(after)
    seen = await rig.finish(workflow_id)
    assert seen.workflow.state is WorkflowState.SUCCEEDED
    assert seen.steps["go"].result == {"bootId": "boot-3", "role": after}
    assert list(rig.executed.values()) == [1]


async def test_a_machine_that_went_down_by_itself_before_it_was_told_to_is_awaited_once_more(rig: Rig) -> None:
    """Else the next step would begin, and the reboot come into the middle of it."""
    daemon = rig.machine.daemon
    daemon.answer = lambda row: None
    await rig.machine.boot("daemon")
    workflow_id = await rig.start(reboot(), power("on", id="next"))
    await rig.run(workflow_id)
    # The command waits. The machine reboots by itself, and is given it as soon as it is back.
    await rig.machine.boot("daemon")
    assert await state_of(rig, workflow_id, "reboot") is WAITING
    assert (await rig.step(workflow_id, "reboot")).rejoin == Rejoin("boot-3", "daemon")
    await rig.agents_work()
    assert list(daemon.executed.values()) == [1]
    await rig.machine.boot("daemon")
    assert await state_of(rig, workflow_id, "reboot") is StepState.SUCCEEDED


async def test_a_command_that_is_handed_over_while_the_machines_return_is_looked_for_is_awaited_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look has read the command before the machine said hello, and the session after it."""
    daemon = rig.machine.daemon
    await rig.machine.boot("daemon")
    workflow_id = await rig.start(reboot(), power("on", id="next"))
    await rig.run(workflow_id)
    rig.machine.turn("daemon")

    def hello_first(tx: Transaction, node_id: str | None) -> Presence | None:
        if presence_of(tx, node_id) == before:
            hello = Hello(
                agent_id=daemon.id, role="daemon", boot_id="boot-3", journal_id=daemon.journal_id, version="0.1.0"
            )
            session, _, resume = open_session(tx, hello, GATEWAY)
            assert mark_sent(tx, resume.send, session)
        return presence_of(tx, node_id)

    before = await rig.store.read(presence_of, rig.node_id)
    monkeypatch.setattr(transitions, "presence_of", hello_first)
    assert await state_of(rig, workflow_id, "reboot") is WAITING
    (command,) = await rig.commands(workflow_id)
    assert (command.state, command.cancel_reason) == (CommandState.QUEUED, None)
    assert (await rig.step(workflow_id, "reboot")).rejoin == Rejoin("boot-3", "daemon")


async def test_a_command_that_was_never_sent_is_taken_back_when_the_machine_is_another_one_meanwhile(
    rig: Rig,
) -> None:
    workflow_id = await rig.start(kexec(), work("next"))
    await rig.run(workflow_id)
    await rig.machine.boot("daemon")
    assert await state_of(rig, workflow_id, "kexec") is StepState.SUCCEEDED
    (command,) = await rig.commands(workflow_id)
    assert command.state is CommandState.CANCELLED


async def test_code_that_relays_a_reboot_awaits_the_return_though_the_command_was_lost(rig: Rig) -> None:
    async def relay(context: StepContext) -> dict[str, object]:
        return await context.await_command(kind="node.reboot", payload={"targetNodeId": context.node_id})

    await rig.machine.boot("daemon")
    rig.machine.daemon.answer = lambda row: None
    rig.code["work"] = relay
    workflow_id = await rig.start(work(**{"await": "rejoin"}), work("next"))
    await rig.run(workflow_id)
    await rig.agents_work()
    assert (await rig.step(workflow_id, "work")).rejoin == Rejoin("boot-2", "daemon")
    await rig.machine.off()
    rig.machine.daemon.lose_journal()
    await rig.machine.boot("daemon")
    assert (await rig.commands(workflow_id))[0].state is CommandState.FAILED
    seen = await rig.finish(workflow_id)
    assert seen.steps["work"].result == {"bootId": "boot-3", "role": "daemon"}
    assert (rig.runs["work"], rig.runs["next"]) == (1, 1)


async def test_code_that_relays_a_reboot_reaches_whichever_agent_the_machine_runs(rig: Rig) -> None:
    async def relay(context: StepContext) -> dict[str, object]:
        return await context.await_command(kind="node.reboot", payload={"targetNodeId": context.node_id})

    rig.code["work"] = relay
    workflow_id = await rig.start(work())
    await rig.finish(workflow_id)
    (command,) = await rig.commands(workflow_id)
    assert command.agent_id == rig.machine.ramdisk.id


async def test_code_that_awaits_a_return_counts_from_when_it_is_done(rig: Rig) -> None:
    workflow_id = await rig.start(work(timeout="1m", **{"await": "rejoin"}))
    await rig.run(workflow_id)
    assert (await rig.step(workflow_id, "work")).state is WAITING
    await rig.machine.boot("ramdisk")
    assert await state_of(rig, workflow_id, "work") is StepState.SUCCEEDED
