"""The first start on an installed system: by the ticket that its deployment left, which is removed afterwards."""

import os
import random
from pathlib import Path

import pytest

from agent.backoff import Backoff
from agent.errors import JoinFailed
from agent.first_join import DriveTicket, FileTicket, FirstJoin, TicketSource
from agent.identity import Facts, Identity, IdentityStore, Validity
from agent.joining import join
from drivers.linux.host import Host, Ran
from protocol.boot_ticket import BootTicket, from_json, to_json
from protocol.join_token import JoinToken
from protocol.secret import Secret
from tests.agent.tls_control_plane import control_plane, public_key


def ticket(token: str | None = None, url: str = "https://127.0.0.1:1") -> bytes:
    text = token or JoinToken.new("ab" * 32).text()
    return to_json(BootTicket(node_id="node_1", control_plane=url, token=Secret(text)))


class _Drive(Host):
    """A host whose configuration drive is a folder."""

    files: Path

    async def run(self, *words: str, timeout: float, given: bytes | None = None) -> Ran:
        folder = Path(words[-1])
        if words[0] == "mount":
            os.rmdir(folder)
            folder.symlink_to(self.files)
        else:
            folder.unlink()
            folder.mkdir()
        return Ran(0, "", "")


@pytest.fixture
def drive(tmp_path: Path) -> _Drive:
    host = _Drive(dev=tmp_path / "dev")
    object.__setattr__(host, "files", tmp_path / "drive")
    (tmp_path / "drive").mkdir()
    (tmp_path / "dev" / "disk" / "by-label").mkdir(parents=True)
    (tmp_path / "dev" / "sda3").touch()
    (tmp_path / "dev" / "disk" / "by-label" / "CIDATA").symlink_to(tmp_path / "dev" / "sda3")
    return host


@pytest.fixture
def store(folder: Path) -> IdentityStore:
    return IdentityStore(folder / "identity")


class Answers:
    def __init__(self, *answers: JoinFailed | None) -> None:
        self.answers = list(answers)
        self.tickets: list[BootTicket] = []

    async def join(self, ticket: BootTicket, store: IdentityStore) -> Identity:
        self.tickets.append(ticket)
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return Identity(store.folder, Facts("agent_1", "daemon", "s", "url", "node_1"), Validity(0, 2e9), "1")


def first_join(store: IdentityStore, sources: list[TicketSource], answers: Answers) -> FirstJoin:
    return FirstJoin(store, sources, join_by=answers.join, backoff=Backoff(0.001, 0.001), chance=random.Random(1))


async def test_the_ticket_of_the_configuration_drive_is_used_once_and_removed(
    drive: _Drive, store: IdentityStore, tmp_path: Path
) -> None:
    file = tmp_path / "drive" / "rackwright.json"
    (tmp_path / "drive" / "user-data").write_text("#cloud-config\n")
    async with control_plane(tmp_path) as plane:
        file.write_bytes(ticket(plane.token(), plane.url))
        identity = await FirstJoin(store, [FileTicket(tmp_path / "none"), DriveTicket(drive)]).run()
        assert plane.joins[0].machine is not None
    assert identity is not None
    assert store.current() == identity
    assert not file.exists()
    assert (tmp_path / "drive" / "user-data").exists()


async def test_a_join_from_the_drive_whose_answer_was_lost_is_asked_again_with_the_same_key(
    drive: _Drive, store: IdentityStore, tmp_path: Path
) -> None:
    file = tmp_path / "drive" / "rackwright.json"
    async with control_plane(tmp_path, lost_answers=2) as plane:
        file.write_bytes(ticket(plane.token(), plane.url))
        # The first process is killed between its question and the answer.
        with pytest.raises(JoinFailed, match="broke before it answered"):
            await join(plane.url, from_json(file.read_bytes()).token.reveal(), store)
        first = FirstJoin(store, [DriveTicket(drive)], backoff=Backoff(0.001, 0.001), chance=random.Random(1))
        identity = await first.run()
    assert len(plane.joins) == 3
    assert len({public_key(request.csr) for request in plane.joins}) == 1
    assert store.current() == identity
    assert not file.exists()


async def test_the_file_of_the_image_comes_first(drive: _Drive, store: IdentityStore, tmp_path: Path) -> None:
    (tmp_path / "join.json").write_bytes(ticket())
    (tmp_path / "drive" / "rackwright.json").write_bytes(ticket())
    answers = Answers(None)
    await first_join(store, [FileTicket(tmp_path / "join.json"), DriveTicket(drive)], answers).run()
    assert not (tmp_path / "join.json").exists()
    assert (tmp_path / "drive" / "rackwright.json").exists()


async def test_without_a_ticket_nothing_is_joined(drive: _Drive, store: IdentityStore, tmp_path: Path) -> None:
    sources: list[TicketSource] = [FileTicket(tmp_path / "none"), DriveTicket(drive), DriveTicket(Host(dev=tmp_path))]
    assert await first_join(store, sources, Answers()).run() is None


async def test_a_damaged_ticket_is_passed_over_for_the_next_place(
    drive: _Drive, store: IdentityStore, tmp_path: Path
) -> None:
    (tmp_path / "join.json").write_text("{")
    (tmp_path / "drive" / "rackwright.json").write_bytes(ticket())
    sources: list[TicketSource] = [FileTicket(tmp_path / "join.json"), DriveTicket(drive)]
    assert await first_join(store, sources, Answers(None)).run() is not None


async def test_a_control_plane_that_is_away_is_asked_again(store: IdentityStore, tmp_path: Path) -> None:
    (tmp_path / "join.json").write_bytes(ticket())
    answers = Answers(JoinFailed("cannot be reached"), JoinFailed("starting", "BUSY"), None)
    assert await first_join(store, [FileTicket(tmp_path / "join.json")], answers).run() is not None
    assert len(answers.tickets) == 3


async def test_a_refused_ticket_says_what_to_do(store: IdentityStore, tmp_path: Path) -> None:
    (tmp_path / "join.json").write_bytes(ticket())
    answers = Answers(JoinFailed("the control plane refused: used already", "TOKEN_REFUSED"))
    with pytest.raises(JoinFailed, match=r"used already.*deploy the machine again") as failure:
        await first_join(store, [FileTicket(tmp_path / "join.json")], answers).run()
    assert failure.value.refusal == "TOKEN_REFUSED"


async def test_an_old_ticket_of_the_image_does_not_hide_the_one_on_the_drive(
    drive: _Drive, store: IdentityStore, tmp_path: Path
) -> None:
    (tmp_path / "join.json").write_bytes(ticket())
    (tmp_path / "drive" / "rackwright.json").write_bytes(ticket())
    answers = Answers(JoinFailed("the control plane refused: used already", "TOKEN_REFUSED"), None)
    sources: list[TicketSource] = [FileTicket(tmp_path / "join.json"), DriveTicket(drive)]
    assert await first_join(store, sources, answers).run() is not None
    assert not (tmp_path / "drive" / "rackwright.json").exists()


async def test_a_ticket_that_cannot_be_removed_is_no_reason_to_fail(
    store: IdentityStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "join.json").write_bytes(ticket())

    def refused(_file: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("agent.first_join._erase", refused)
    assert await first_join(store, [FileTicket(tmp_path / "join.json")], Answers(None)).run() is not None
