"""An agent without sockets: a journal on the disk, the counting driver, and a control plane that keeps a ledger.

The ledger follows the rules of the real one: what was sent, delivered and ended decides what a reconnect brings.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.bmcs import BmcMemory, Bmcs
from agent.clock import Deadline
from agent.collecting import LogCollector
from agent.executor import Executor
from agent.journal import Entry, Journal
from agent.session import Closed, Session, SessionEnd
from agent.vault import Vault, VaultKey
from protocol.commands import TERMINAL, CommandState, Ending, JournalState
from protocol.frames import (
    Accepted,
    AgentFrame,
    Command,
    ControlFrame,
    ErrorFrame,
    Finished,
    Hello,
    Progress,
    Ready,
    Settled,
    Started,
    Welcome,
    decode_agent_frame,
    encode,
)
from protocol.ids import new_id
from tests.agent.counting_driver import MACHINES
from tests.agent.points import Points


class FakeClock:
    """A kernel's clock that a test moves, and that can be booted anew."""

    def __init__(self) -> None:
        self.boot_id = "boot-1"
        self.now_ms = 1_000_000

    def boottime_ms(self) -> int:
        return self.now_ms

    def reboot(self) -> None:
        self.boot_id += "x"
        self.now_ms = 5_000


class PointedJournal(Journal):
    """A journal whose every write can be the last thing that happens."""

    points: Points

    async def accept(self, command: Command, deadline: Deadline) -> Entry | None:
        await self.points.at("before accept")
        result = await super().accept(command, deadline)
        await self.points.at("after accept")
        return result

    async def recall(self, command_id: str) -> Entry | None:
        await self.points.at("before recall")
        result = await super().recall(command_id)
        await self.points.at("after recall")
        return result

    async def start(self, command_id: str) -> None:
        await self.points.at("before start")
        await super().start(command_id)
        await self.points.at("after start")

    async def finish(self, command_id: str, ending: Ending) -> None:
        await self.points.at("before finish")
        await super().finish(command_id, ending)
        await self.points.at("after finish")

    async def forget(self, endings: object) -> None:
        await self.points.at("before forget")
        await super().forget(endings)  # type: ignore[arg-type]
        await self.points.at("after forget")


class Wire:
    """The agent's end of a connection in memory; the test holds the other end's queues.

    `duplicate`, `cut` and `swap` name a frame by its number, counted over both directions.
    """

    def __init__(self, points: Points, *, duplicate: int = 0, cut: int = 0, swap: int = 0) -> None:
        self.to_agent: asyncio.Queue[str | None] = asyncio.Queue()
        self.from_agent: asyncio.Queue[AgentFrame | None] = asyncio.Queue()
        self.points = points
        self.frames = 0
        self._duplicate, self._cut, self._swap = duplicate, cut, swap
        self._kept_back: str | None = None
        self._closed = False

    async def send(self, data: bytes) -> None:
        frame = decode_agent_frame(data)
        name = type(frame).__name__
        await self.points.at(f"before sending {name}")
        self._count()
        if self._closed:
            raise Closed("cut")
        self.from_agent.put_nowait(frame)
        if self.frames == self._duplicate:
            self.from_agent.put_nowait(frame)
        await self.points.at(f"after sending {name}")

    async def send_bytes(self, data: bytes) -> None:
        raise AssertionError(f"no console is open here, and {len(data)} bytes of one came")

    async def receive(self) -> str:
        message = await self.to_agent.get()
        if message is None or self._closed:
            self._closed = True
            raise Closed("cut")
        await self.points.at("after receiving a frame")
        return message

    async def close(self) -> None:
        self._closed = True
        self.to_agent.put_nowait(None)
        self.from_agent.put_nowait(None)

    def tell(self, frame: ControlFrame) -> None:
        """The control plane's side sends a frame."""
        self._count()
        if self._closed:
            self.to_agent.put_nowait(None)
            return
        text = encode(frame).decode()
        if self.frames == self._swap:
            # Kept back until the next one has gone, or for ever so little where none follows.
            self._kept_back = text
            asyncio.get_running_loop().call_later(0.02, self._let_go)
            return
        self.to_agent.put_nowait(text)
        self._let_go()
        if self.frames == self._duplicate:
            self.to_agent.put_nowait(text)

    def _let_go(self) -> None:
        text, self._kept_back = self._kept_back, None
        if text is not None:
            self.to_agent.put_nowait(text)

    def _count(self) -> None:
        self.frames += 1
        if self.frames == self._cut:
            self._closed = True
            self.to_agent.put_nowait(None)
            self.from_agent.put_nowait(None)


@dataclass
class Asked:
    """A row of the ledger."""

    command: Command
    state: CommandState = CommandState.QUEUED
    sent_journal: str | None = None
    ending: Ending | None = None
    endings: list[Ending] = field(default_factory=list)
    given_up: bool = False


class Ledger:
    """The control plane's memory, which outlives every agent."""

    def __init__(self) -> None:
        self.rows: dict[str, Asked] = {}
        self.settled = asyncio.Event()
        self.complaints: list[ErrorFrame] = []
        self.progress: list[Progress] = []

    def ask(self, command: Command) -> Asked:
        row = self.rows[command.id] = Asked(command)
        return row

    async def serve(self, wire: Wire) -> None:
        """One connection, until it is cut."""
        while (frame := await wire.from_agent.get()) is not None:
            match frame:
                case Hello():
                    self._hello(wire, frame)
                case Accepted():
                    self._advance(frame.id, CommandState.DELIVERED)
                case Started():
                    self._advance(frame.id, CommandState.RUNNING)
                case Finished():
                    self._finished(wire, frame)
                case ErrorFrame():
                    self.complaints.append(frame)
                case Progress():
                    self.progress.append(frame)
                case Ready():
                    pass
                case _:
                    raise AssertionError(frame)

    def _hello(self, wire: Wire, hello: Hello) -> None:
        held = {entry.id: entry.state for entry in hello.held}
        forget = [
            key
            for key, state in held.items()
            if (row := self.rows.get(key)) is None or (row.state in TERMINAL and state is not JournalState.STARTED)
        ]
        wire.tell(Welcome(session_id=new_id("ses"), settled=forget))
        for key, row in self.rows.items():
            if row.state in TERMINAL:
                continue
            if key not in held:
                if row.state is not CommandState.QUEUED or row.sent_journal not in (None, hello.journal_id):
                    row.given_up = True
                row.sent_journal = hello.journal_id
                wire.tell(row.command)
            elif held[key] is JournalState.ACCEPTED:
                wire.tell(row.command)

    def _advance(self, key: str, state: CommandState) -> None:
        row = self.rows.get(key)
        if row is not None and row.state not in TERMINAL and row.state is not CommandState.RUNNING:
            row.state = state

    def _finished(self, wire: Wire, frame: Finished) -> None:
        row = self.rows.get(frame.id)
        if row is not None:
            row.endings.append(frame.ending)
            if row.ending is None:
                row.ending, row.state = frame.ending, frame.ending.outcome.state
        wire.tell(Settled(ids=[frame.id]))
        if all(row.state in TERMINAL for row in self.rows.values()):
            self.settled.set()


class Agent:
    """One life of an agent's process."""

    def __init__(
        self,
        folder: Path,
        clock: FakeClock,
        points: Points | None = None,
        *,
        limit: int = 10_000,
        running: int = 1_000,
    ) -> None:
        self.points = points or Points()
        MACHINES.points = self.points
        self.vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
        self.bmcs = Bmcs(self.vault, BmcMemory(folder / "bmcs.json"))
        journal = PointedJournal.open(folder / "journal.db", clock)
        assert isinstance(journal, PointedJournal)
        journal.points = self.points
        self.journal = journal
        self.executor = Executor(
            self.journal,
            {"driver.invoke": self.bmcs, "agent.collectLogs": LogCollector(["one", "two", "three"])},
            clock,
            limit=limit,
            running=running,
        )
        self.executor.recover(self.journal.held())
        self._tasks: list[asyncio.Task[object]] = []

    def hello(self) -> Hello:
        return Hello(
            agent_id="agent_1",
            role="site",
            boot_id="boot",
            journal_id=self.journal.id,
            version="0",
            held=self.executor.held(),
        )

    def connect(self, ledger: Ledger, **faults: int) -> tuple[Wire, asyncio.Task[SessionEnd]]:
        wire = Wire(self.points, **faults)
        serving = asyncio.create_task(ledger.serve(wire))
        session = asyncio.create_task(Session(wire, self.hello, self.executor).run())
        self._tasks += [serving, session]
        return wire, session

    async def kill(self) -> None:
        """Drops everything that is in memory; the disk stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.executor.abandon()
        self.journal.close()
        await self.bmcs.aclose()


def setting(action: str = "reset", host: str = "m1", remaining_ms: int = 60_000) -> Command:
    return invoke("power", "setPower", {"action": action}, host, remaining_ms)


def getting(host: str = "m1", remaining_ms: int = 60_000) -> Command:
    return invoke("power", "getPower", {}, host, remaining_ms)


def invoke(
    concern: str, operation: str, args: dict[str, object], host: str = "m1", remaining_ms: int = 60_000
) -> Command:
    return Command(
        id=new_id("cmd"),
        kind="driver.invoke",
        payload={
            "driver": "simulated",
            "concern": concern,
            "operation": operation,
            "args": args,
            "targetNodeId": f"node-{host}",
            "target": {"address": f"simulated://{host}"},
        },
        remaining_ms=remaining_ms,
    )


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds; the test's own timeout is the limit."""
    while not condition():
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def stopped_at_the_end(*agents: Agent):  # type: ignore[no-untyped-def]
    try:
        yield
    finally:
        for agent in agents:
            await agent.kill()
