"""A command ledger on an empty database, with one agent and one node, and a clock that the tests turn."""

from dataclasses import dataclass
from typing import Any

import msgspec

from control_plane.command_queue import cancels_owed, mark_sent, owed_to_worker
from control_plane.commands import (
    Settlement,
    advance,
    cancel,
    enqueue,
    expire,
    get_command,
    settle,
)
from control_plane.nodes import create_node
from control_plane.records import AgentRow, CommandRow, NodeRow, SessionRow
from control_plane.resume import Resume
from control_plane.sessions import close_session, make_ready, open_session
from control_plane.sites import create_site
from control_plane.store import Store, Transaction, params_of
from protocol.commands import CommandState, Ending, JournalState, Outcome
from protocol.errors import Failure
from protocol.frames import Held, Hello
from protocol.ids import new_id
from protocol.operations import Repeat

TENANT = "acme"
WORKER = "worker-1"
DONE = Ending(Outcome.SUCCEEDED, result={"state": "on"})
OPERATIONS = {Repeat.READ: "getPower", Repeat.CONVERGE: "setPower", Repeat.ONCE: "setPower"}
ARGUMENTS: dict[Repeat, dict[str, object]] = {
    Repeat.READ: {},
    Repeat.CONVERGE: {"action": "on"},
    Repeat.ONCE: {"action": "reset"},
}


class Clock:
    """Milliseconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_by(self, milliseconds: int) -> None:
        self.now += milliseconds


@dataclass
class Ledger:
    store: Store
    clock: Clock
    agent_id: str
    node_id: str
    noted: str = ""

    async def command(
        self, repeat: Repeat = Repeat.ONCE, *, key: str | None = None, lasts_ms: int = 60_000, **changes: Any
    ) -> CommandRow:
        """A stored command of this kind, not sent yet."""
        row = self.new(repeat, key=key, lasts_ms=lasts_ms)
        return await self.store.write(enqueue, msgspec.structs.replace(row, **changes))

    def new(self, repeat: Repeat, *, key: str | None = None, lasts_ms: int = 60_000) -> CommandRow:
        command_id = new_id("cmd")
        return CommandRow(
            id=command_id,
            tenant_id=TENANT,
            node_id=self.node_id,
            agent_id=self.agent_id,
            kind="driver.invoke",
            payload={"concern": "power", "operation": OPERATIONS[repeat], "args": ARGUMENTS[repeat]},
            key=key or command_id,
            repeat=repeat,
            state=CommandState.QUEUED,
            created_at=self.clock.now,
            created_by="tok_test",
            not_after=self.clock.now + lasts_ms,
            sent_session=None,
            sent_journal=None,
            started_at=None,
            finished_at=None,
            cancel_reason=None,
            ending=None,
            late_ending=None,
        )

    async def connect(
        self,
        held: dict[str, JournalState] | None = None,
        *,
        journal: str = "jrn_1",
        worker: str = WORKER,
        boot: str = "boot",
        noted: str | None = None,
        instance: str = "process",
    ) -> tuple[SessionRow, Resume]:
        """The agent says hello, and its journal notes the session; what is owed is marked as sent, as by the gateway.

        `noted`: the session that the journal noted last, where that is not the last one.
        """
        hello = Hello(
            agent_id=self.agent_id,
            role="site",
            boot_id=boot,
            journal_id=journal,
            instance=instance,
            last_session=self.noted if noted is None else noted,
            version="0.1.0",
            held=[Held(command_id, state) for command_id, state in (held or {}).items()],
        )
        session, resume = await self.store.write(_connect, hello, worker)
        self.noted = session.id
        return session, resume

    async def disconnect(self, session: SessionRow) -> None:
        await self.store.write(close_session, session.id, "cut")

    async def send_owed(self, worker: str = WORKER, live: frozenset[str] | None = None) -> list[str]:
        """The ids that the worker sends now; marked as sent. `live`: the connections that are there."""
        return [row.id for row in await self.store.write(_send_owed, worker, live)]

    async def cancels(self, worker: str = WORKER, after: str = "") -> list[str]:
        return [row.id for row in await self.store.read(cancels_owed, worker, [], 10, after)]

    async def row(self, command_id: str) -> CommandRow:
        row = await self.store.read(get_command, TENANT, command_id)
        assert row is not None
        return row

    async def advance(self, command_id: str, state: CommandState) -> CommandRow:
        await self.store.write(advance, self.agent_id, command_id, state)
        return await self.row(command_id)

    async def settle(self, command_id: str, ending: Ending = DONE, *, over: SessionRow | None = None) -> Settlement:
        """`over`: the connection that it was said over; None for the present one."""
        session_id = None if over is None else over.id
        return (await self.store.write(settle, self.agent_id, command_id, ending, session_id))[0]

    async def cancel(self, command_id: str, reason: str = "no longer wanted") -> CommandRow:
        return await self.store.write(_cancel, command_id, reason)

    async def expire(self, limit: int = 100) -> int:
        return await self.store.write(expire, limit)

    async def at(self, state: CommandState, repeat: Repeat = Repeat.ONCE) -> CommandRow:
        """A sent command whose agent is in this state with it, over the journal jrn_1."""
        await self.connect()
        row = await self.command(repeat)
        await self.send_owed()
        if state is not CommandState.QUEUED:
            await self.advance(row.id, state)
        return await self.row(row.id)

    async def events(self) -> list[tuple[str, str]]:
        rows = await self.store.read(_events)
        return [(str(kind), str(subject)) for kind, subject in rows]


def failed(code: str, message: str = "it failed") -> Ending:
    return Ending(Outcome.FAILED, error=Failure(code, message))


async def make_ledger(store: Store, clock: Clock) -> Ledger:
    agent_id, node_id = await store.write(_fleet)
    return Ledger(store, clock, agent_id, node_id)


def _fleet(tx: Transaction) -> tuple[str, str]:
    site = create_site(tx, TENANT, "lab")
    agent = AgentRow(new_id("agent"), TENANT, site.id, None, "site", "host", "0.1.0", {}, tx.now(), None, None, None)
    names = AgentRow.__struct_fields__
    tx.run(f"INSERT INTO agents ({', '.join(names)}) VALUES ({', '.join(f':{n}' for n in names)})", params_of(agent))
    node = create_node(
        tx,
        NodeRow(
            id=new_id("node"),
            tenant_id=TENANT,
            name="n1",
            site_id=site.id,
            labels={},
            drivers={},
            bmc_address="https://192.0.2.1",
            bmc_driver="redfish",
            credential_ref=None,
            tls="first-use",
            created_at=tx.now(),
            updated_at=tx.now(),
        ),
    )
    return agent.id, node.id


def _connect(tx: Transaction, hello: Hello, worker: str) -> tuple[SessionRow, Resume]:
    session, _, resume = open_session(tx, hello, worker)
    make_ready(tx, session)
    return session, resume._replace(send=mark_sent(tx, resume.send, session))


def _send_owed(tx: Transaction, worker: str, live: frozenset[str] | None) -> list[CommandRow]:
    owed = owed_to_worker(tx, worker, [], 100, live)
    return [sent for row, session in owed for sent in mark_sent(tx, [row], session)]


def _cancel(tx: Transaction, command_id: str, reason: str) -> CommandRow:
    row = get_command(tx, TENANT, command_id, lock=True)
    assert row is not None
    return cancel(tx, row, reason)


def _events(tx: Transaction) -> list[Any]:
    return tx.all("SELECT type, subject FROM events ORDER BY seq")
