"""One fake IPMI 2.0 BMC as a pure core: datagrams and time in, datagrams out.

`IpmiBmc.receive` takes a datagram and gives back what to send, and when. Work that falls due later
(delayed requests, machine steps, console output) is done by `tick`; `next_due` says when to call it.
No sockets and no event loop here; `server.py` has them.
"""

import heapq
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable

from simulators.ipmi.accounts import User, UserTable
from simulators.ipmi.boot_options import BootOptions
from simulators.ipmi.ciphers import SUITES
from simulators.ipmi.commands import ALL_COMMANDS
from simulators.ipmi.commands.registry import CommandTable
from simulators.ipmi.console import Console, SolLink, SolTiming
from simulators.ipmi.constants import (
    RMCP_PORT,
    PayloadType,
    Privilege,
)
from simulators.ipmi.conversation import Conversation, Outgoing
from simulators.ipmi.event_log import Event, EventLog
from simulators.ipmi.faults import FaultPlan, FaultRule
from simulators.ipmi.identity import Identity
from simulators.ipmi.inventory import Fru, default_frus
from simulators.ipmi.journal import Journal
from simulators.ipmi.lan import lan_parameters, sol_parameters, sol_retry
from simulators.ipmi.machine import Machine, PowerEvent, PowerTiming
from simulators.ipmi.sensors import Sensor, SensorRepository, SensorType, default_sensors
from simulators.ipmi.sessions import (
    Address,
    Session,
    SessionLimits,
    SessionTable,
)

SOL_PAYLOAD_SIZE = 255
DEFAULT_EVENTS = (
    Event(SensorType.EVENT_LOGGING, 0x00, b"\x02"),
    Event(SensorType.POWER_SUPPLY, 0x42, b"\x03"),
    Event(SensorType.POWER_SUPPLY, 0x42, b"\x03", asserted=False),
)
_POWER_UNIT, _SYSTEM_BOOT = 0x50, 0x51
POWER_EVENTS = {
    PowerEvent.POWERED_OFF: (Event(SensorType.POWER_UNIT, _POWER_UNIT, b"\x00"),),
    PowerEvent.POWERED_ON: (Event(SensorType.POWER_UNIT, _POWER_UNIT, b"\x00", asserted=False),),
    PowerEvent.RESET: (Event(SensorType.SYSTEM_BOOT, _SYSTEM_BOOT, b"\x01"),),
}


class IpmiBmc:
    """A BMC and the machine behind it.

    `answer_delay` seconds go by before each answer; `restart_seconds` is how long a Cold or Warm Reset keeps
    the BMC silent. `clock` gives monotonic seconds, `wall_clock` the time of day, `random` random bytes.
    `suites` are the cipher suites offered; `machine` takes the place of the modelled one. Everything public may
    be read and changed while it runs.
    """

    def __init__(
        self,
        *,
        users: Iterable[User] = (),
        suites: Collection[int] = (3, 17),
        identity: Identity | None = None,
        powered: bool = True,
        timing: PowerTiming | None = None,
        limits: SessionLimits | None = None,
        channel_limit: Privilege = Privilege.ADMINISTRATOR,
        k_g: bytes = b"",
        unsupported_boot_parameters: Collection[int] = (),
        faults: Iterable[FaultRule] = (),
        answer_delay: float = 0.0,
        restart_seconds: float = 2.0,
        journal_limit: int = 10_000,
        lan_address: str = "192.0.2.10",
        sensors: Iterable[Sensor] | None = None,
        frus: Iterable[Fru] | None = None,
        events: Iterable[Event] | None = None,
        console: Console | None = None,
        machine: Machine | None = None,
        commands: CommandTable = ALL_COMMANDS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        unknown = sorted(set(suites) - set(SUITES))
        if unknown or not suites:
            raise ValueError(f"cipher suites {unknown or list(suites)} are not offered here: choose among 3 and 17")
        self.clock = clock
        self.wall_clock = wall_clock
        self.identity = identity or Identity()
        self.users = UserTable(users)
        self.faults = FaultPlan(faults)
        self.journal = Journal(journal_limit)
        self.answer_delay = answer_delay
        self.restart_seconds = restart_seconds
        self.port = RMCP_PORT
        self.machine = machine or Machine(
            clock,
            powered=powered,
            timing=timing or PowerTiming(),
            boot_options=BootOptions(unsupported_boot_parameters),
        )
        self.sessions = SessionTable(
            self.users,
            self.identity.guid,
            clock=clock,
            random=random,
            limits=limits or SessionLimits(),
            suites=suites,
            channel_limit=channel_limit,
            k_g=k_g,
        )
        # Set by whoever carries the datagrams: called when `next_due` may have become earlier.
        self.on_work: Callable[[], None] = lambda: None
        self.lan = lan_parameters(lan_address, self.identity.mac, suites)
        self.sel = EventLog(wall_clock, DEFAULT_EVENTS if events is None else events)
        inventories = default_frus(self.identity.serial) if frus is None else list(frus)
        self.frus = {device: fru.encode() for device, fru in enumerate(inventories)}
        self.sdr = SensorRepository(
            default_sensors() if sensors is None else sensors,
            [(device, fru.name, fru.entity) for device, fru in enumerate(inventories)],
        )
        self.console = console or Console()
        self.console.on_output = self._wake
        self.sol: SolLink | None = None
        self.sol_settings = sol_parameters()
        self.sol_inbound_size = self.sol_outbound_size = SOL_PAYLOAD_SIZE
        self.sol_ends_with_power = False
        self.sessions.on_close.append(self._session_closed)
        self.machine.listeners.append(self._power_changed)
        self.restore_policy = 0
        self.acpi_state = (0, 0)
        self.global_enables = 0x08
        self.power_on_hours = 4242
        self.restarts = 0
        self.commands = commands
        self._conversation = Conversation(self)
        self._identify_until = 0.0
        self._silent_until = 0.0
        self._after_answer: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Callable[[], list[Outgoing]]]] = []
        self._timer_numbers = itertools.count()

    # What the machine room and the commands do to it.

    def restart(self, silent_seconds: float | None = None) -> None:
        """Restart the BMC: every session is lost and nothing is answered for a while. The machine runs on."""
        seconds = self.restart_seconds if silent_seconds is None else silent_seconds
        self.restarts += 1
        self.sessions.close_all()
        self._timers.clear()
        self._silent_until = self.clock() + seconds

    def restart_after_answer(self) -> None:
        """Restart as soon as the command that asks for it is answered."""
        self._after_answer.append(self.restart)

    def close_after_answer(self, session: Session) -> None:
        """Close a session as soon as the command that asks for it is answered."""
        self._after_answer.append(lambda: self.sessions.close(session))

    def identify(self, seconds: float, *, forced: bool = False) -> None:
        """Blink the identify light for some seconds; `forced` keeps it on until it is turned off by 0 seconds."""
        self._identify_until = float("inf") if forced else self.clock() + seconds

    def identify_state(self) -> int:
        """0 off, 1 on for a time, 2 on until told otherwise (Get Chassis Status)."""
        if self._identify_until == float("inf"):
            return 2
        return int(self._identify_until > self.clock())

    def fru(self, device: int) -> bytearray | None:
        """The inventory of a FRU device, or None."""
        return self.frus.get(device)

    # SOL.

    def activate_sol(self, session: Session) -> None:
        """Give the console to a session. What the machine wrote before is lost, as nobody listened."""
        retries, interval = sol_retry(self.sol_settings)
        self.console.discard()
        self.sol = SolLink(
            self.console,
            session.id,
            clock=self.clock,
            timing=SolTiming(retries, interval),
            inbound_size=self.sol_inbound_size,
            outbound_size=self.sol_outbound_size,
        )

    def deactivate_sol(self, told_by: Session | None = None) -> None:
        """Take the console away; a session other than the one that asked for it is told."""
        link, self.sol = self.sol, None
        if link is None or (told_by is not None and told_by.id == link.session_id):
            return
        session = self.sessions.find(link.session_id)
        if session is not None and session.keys is not None:
            farewell = self._conversation.protect(session, PayloadType.SOL, link.farewell())
            self.later(0.0, lambda: [Outgoing(farewell, session.peer)])
            self.on_work()

    def _wake(self) -> None:
        self.on_work()

    def _session_closed(self, session: Session) -> None:
        if self.sol is not None and self.sol.session_id == session.id:
            self.sol = None

    def _power_changed(self, event: PowerEvent) -> None:
        if self.sol_ends_with_power and event is PowerEvent.POWERED_OFF:
            self.deactivate_sol()
        for entry in POWER_EVENTS.get(event, ()):
            self.sel.record(entry)

    def _pump_sol(self) -> list[Outgoing]:
        link = self.sol
        session = self.sessions.find(link.session_id) if link is not None else None
        if link is None or session is None:
            return []
        return [
            Outgoing(self._conversation.protect(session, PayloadType.SOL, part), session.peer, self.answer_delay)
            for part in link.pump()
        ]

    # Time.

    def next_due(self) -> float | None:
        """When `tick` has work, by the BMC's clock; None while there is none."""
        times = [self._timers[0][0]] if self._timers else []
        step = self.machine.next_step()
        if step is not None:
            times.append(step)
        output = self.sol.next_due() if self.sol is not None else None
        if output is not None:
            times.append(output)
        return min(times, default=None)

    def tick(self) -> list[Outgoing]:
        """Do what fell due; gives what is to be sent for it."""
        self.machine.settle()
        sent: list[Outgoing] = []
        while self._timers and self._timers[0][0] <= self.clock():
            sent += heapq.heappop(self._timers)[2]()
        return sent + self._pump_sol()

    def receive(self, datagram: bytes, peer: Address) -> list[Outgoing]:
        """Take one datagram; gives what to send for it. Bytes that make no sense are dropped without an answer."""
        if self.clock() < self._silent_until:
            return []
        return self._conversation.receive(datagram, peer)

    def do_after_answer(self) -> None:
        """What the command just answered asked to be done once its answer is made."""
        afterwards, self._after_answer = self._after_answer, []
        for step in afterwards:
            step()

    def later(self, seconds: float, work: Callable[[], list[Outgoing]]) -> None:
        """Have `tick` do some work in so many seconds; gives up on it where the BMC restarts before."""
        heapq.heappush(self._timers, (self.clock() + seconds, next(self._timer_numbers), work))
