"""Joining by the boot's ticket: for ever, with words for whoever looks at the console, and never twice."""

import asyncio
import random
import ssl
from pathlib import Path

import pytest

from agent.backoff import Backoff
from agent.errors import JoinFailed
from agent.identity import Facts, Identity, IdentityStore, Validity
from protocol.boot_ticket import TICKET_NAME, BootTicket, TicketInterface, TicketNetwork, to_json
from protocol.join_token import JoinToken
from protocol.machine_facts import MachineFacts
from protocol.secret import Secret
from ramdisk import join
from ramdisk.consoles import Announcer
from ramdisk.join import Joining
from ramdisk.network import Network
from ramdisk.ticket import Carriers
from tests.agent.tls_control_plane import control_plane, public_key
from tests.drivers.linux.machine import Machine

FACTS = MachineFacts(uuid="4c4c4544-0042-3510-8056-b7c04f4d3232", macs=["52:54:00:00:00:01"])
SETTINGS = TicketNetwork(interfaces=[TicketInterface(mac="52:54:00:00:00:01", addresses=["192.0.2.5/24"])])


class Boot:
    """A ramdisk whose network is there, and whose file holds a ticket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = Machine(folder / "machine")
        self.machine.write("class/tty/console/active", "tty0 ttyS0")
        for console in ("tty0", "ttyS0"):
            (self.machine.host.dev / console).touch()
        self.announcer = Announcer(self.machine.host)
        (folder / "state" / "network").mkdir(parents=True)
        self.network = Network(self.machine.host, folder / "state" / "network", self.announcer)
        self.network.ready.set()
        self.store = IdentityStore(folder / "state" / "identity")
        self.file = folder / "root" / TICKET_NAME

    def give(self, token: str, url: str = "https://127.0.0.1:1", **more: object) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        ticket = BootTicket(node_id="node_1", control_plane=url, token=Secret(token), network=SETTINGS)
        self.file.write_bytes(to_json(ticket))

    def joining(self, join_with: join.JoinsWith | None = None) -> Joining:
        more = {} if join_with is None else {"join_with": join_with}
        carriers = Carriers(self.machine.host, self.folder / "root")
        return Joining(
            self.store,
            carriers,
            self.network,
            self.announcer,
            lambda: FACTS,
            backoff=Backoff(0.001, 0.001),
            chance=random.Random(1),
            **more,
        )

    @property
    def console(self) -> str:
        """What the serial port has shown; the screen has shown the same."""
        serial = (self.machine.host.dev / "ttyS0").read_text()
        assert serial == (self.machine.host.dev / "tty0").read_text()
        return serial


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boot:
    monkeypatch.setattr(join, "_TICKET_QUICK", 0.002)
    monkeypatch.setattr(join, "_TICKET_SLOW", 0.002)
    monkeypatch.setattr(join, "_QUICK_LOOKS", 3)
    monkeypatch.setattr(join, "_REFUSED_SECONDS", 0.01)
    return Boot(tmp_path)


def token() -> str:
    return JoinToken.new("ab" * 32).text()


class Answers:
    """A control plane that gives one answer after another, and counts."""

    def __init__(self, *answers: BaseException | None) -> None:
        self.answers = list(answers)
        self.tokens: list[str] = []

    async def join(self, url: str, text: str, store: IdentityStore, machine: MachineFacts) -> Identity:
        self.tokens.append(text)
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return Identity(store.folder, Facts("agent_1", "ramdisk", "s", url, "node_1"), Validity(0, 2e9), "1")


async def test_a_machine_joins_by_its_ticket_tells_who_it_is_and_keeps_no_ticket(boot: Boot, tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        text = plane.token()
        boot.give(text, plane.url)
        identity = await boot.joining().identity()
    assert boot.store.current() == identity
    assert plane.joins[0].machine == FACTS
    assert not boot.file.exists()
    assert text not in boot.console
    assert f"control plane {plane.url}" in boot.console
    assert "joined as" in boot.console


async def test_a_join_whose_answer_was_lost_is_asked_again_with_the_ticket_of_the_initial_ramdisk(
    boot: Boot, tmp_path: Path
) -> None:
    """As iPXE brings it: there is no other one to come."""
    async with control_plane(tmp_path, lost_answers=2) as plane:
        boot.give(plane.token(), plane.url)
        identity = await boot.joining().identity()
    assert len(plane.joins) == 3
    assert len({public_key(request.csr) for request in plane.joins}) == 1
    assert boot.store.current() == identity
    assert "cannot join yet" in boot.console
    assert "broke before it answered" in boot.console
    assert not boot.file.exists()


async def test_a_restarted_process_has_joined_already(boot: Boot, tmp_path: Path) -> None:
    async with control_plane(tmp_path) as plane:
        boot.give(plane.token(), plane.url)
        first = await boot.joining().identity()
        assert await boot.joining().identity() == first
        assert len(plane.joins) == 1


@pytest.mark.case("B50")
async def test_a_control_plane_that_is_away_is_asked_again_and_said_once(boot: Boot) -> None:
    boot.give(token())
    away = JoinFailed("https://127.0.0.1:1 cannot be reached (refused): check the address")
    busy = JoinFailed("the control plane refused: it is starting", "BUSY")
    answers = Answers(away, away, away, busy, None)
    await boot.joining(answers.join).identity()
    assert len(set(answers.tokens)) == 1
    assert boot.console.count("cannot join yet: https://127.0.0.1:1 cannot be reached") == 1
    assert "it is starting" in boot.console


@pytest.mark.case("B47")
@pytest.mark.parametrize("code", ["TOKEN_REFUSED", "AMBIGUOUS_MACHINE", "UNREADABLE"])
async def test_b47_a_dead_ticket_is_never_shown_again_and_a_fresh_one_is_waited_for(boot: Boot, code: str) -> None:
    dead, fresh = token(), token()
    boot.give(dead)
    answers = Answers(JoinFailed("the control plane refused: this token was used already", code), None)
    joining = asyncio.create_task(boot.joining(answers.join).identity())
    while "only the refused ticket is there" not in boot.console:
        await asyncio.sleep(0.002)
    assert answers.tokens == [dead]
    assert f"({code})" in boot.console
    assert "rackwright nodes commission" in boot.console
    boot.give(fresh)
    await joining
    assert answers.tokens == [dead, fresh]


async def test_without_a_ticket_it_says_where_one_is_looked_for_and_goes_on(boot: Boot) -> None:
    (boot.machine.host.proc / "cmdline").write_text("quiet\n")
    answers = Answers(None)
    joining = asyncio.create_task(boot.joining(answers.join).identity())
    while "no boot ticket was found" not in boot.console:
        await asyncio.sleep(0.002)
    assert "label RACKWRIGHT" in boot.console
    boot.give(token())
    await joining


async def test_a_fault_of_ours_does_not_end_the_trying(boot: Boot) -> None:
    boot.give(token())
    await boot.joining(Answers(RuntimeError("boom"), None).join).identity()
    assert "the agent itself failed" in boot.console


async def test_the_networks_settings_come_from_the_ticket(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    boot.give(token())
    wanted: list[TicketNetwork] = []
    monkeypatch.setattr(boot.network, "configure", wanted.append)
    await boot.joining(Answers(None).join).identity()
    assert wanted == [SETTINGS]


async def test_without_a_network_the_message_says_what_each_port_lacks(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "_NETWORK_SECONDS", 0.01)
    boot.network.ready.clear()
    boot.give(token())
    await boot.joining(Answers(JoinFailed("cannot be reached"), None).join).identity()
    assert "cannot be reached. Network: no network port was found" in boot.console


async def test_a_clock_that_is_years_behind_is_set_and_the_join_goes_on(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot.give(token(), "https://127.0.0.1:8443")
    cause = ssl.SSLCertVerificationError()
    cause.verify_code = 9
    early = JoinFailed("the certificate does not hold (certificate is not yet valid)")
    early.__cause__ = cause
    asked: list[object] = []

    def corrected(endpoint: object) -> float:
        asked.append(endpoint)
        return 86_400.0 * 365

    monkeypatch.setattr(join, "correct_clock", corrected)
    await boot.joining(Answers(early, None).join).identity()
    assert [str(endpoint) for endpoint in asked] == ["https://127.0.0.1:8443"]
    assert "the clock was wrong by 8760.0 h" in boot.console
