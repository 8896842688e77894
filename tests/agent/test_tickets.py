"""Boot tickets asked for over a link that may lose what is said."""

import pytest

from agent import tickets as module
from agent.tickets import Tickets
from protocol.errors import ErrorCode, OperationError
from protocol.frames import AgentFrame, Ticket, TicketRequest
from tests.agent.boot_site import TicketGiver


async def test_a_ticket_is_for_the_machine_that_was_asked_for() -> None:
    giver = TicketGiver()
    ticket = await giver.tickets.request("node_1")
    assert ticket == giver.given[0]
    assert ticket.node_id == "node_1"


async def test_a_request_that_was_lost_with_the_link_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_AGAIN_SECONDS", 0.01)
    giver = TicketGiver()
    said: list[AgentFrame] = []

    def lose_first(frame: AgentFrame) -> None:
        said.append(frame)
        if len(said) > 1:
            giver.tickets.take(giver.answer(_request(frame)))

    giver.tickets = Tickets(lose_first)
    assert await giver.tickets.request("node_1") == giver.given[0]
    assert said[0] == said[1]


def _request(frame: AgentFrame) -> TicketRequest:
    assert isinstance(frame, TicketRequest)
    return frame


async def test_a_control_plane_that_is_away_is_told_in_time() -> None:
    giver = TicketGiver(away=True)
    with pytest.raises(OperationError, match=r"no boot ticket within 0\.05 s") as failure:
        await giver.tickets.request("node_1", patience=0.05)
    assert failure.value.code is ErrorCode.UNREACHABLE


async def test_a_refusal_is_told_with_its_words() -> None:
    giver = TicketGiver(refusal="this agent's site has no such machine")
    with pytest.raises(OperationError, match="this agent's site has no such machine") as failure:
        await giver.tickets.request("node_1")
    assert failure.value.code is ErrorCode.CONFLICT


async def test_a_ticket_that_cannot_be_read_is_told_and_not_shown() -> None:
    tickets = Tickets(lambda frame: tickets.take(Ticket(id=_request(frame).id, ticket='{"token":"rwj1.secret"}')))
    with pytest.raises(OperationError, match="cannot be read") as failure:
        await tickets.request("node_1")
    assert "rwj1" not in failure.value.message


async def test_a_ticket_at_hand_is_kept_while_it_is_good() -> None:
    giver = TicketGiver()
    ticket = await giver.tickets.request("node_1")
    token_id = ticket.token.reveal().split(".")[2]
    assert (await giver.tickets.renew("node_1", token_id)).ticket is None
    giver.use(ticket)
    assert (await giver.tickets.renew("node_1", token_id)).ticket is not None


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    TicketGiver().tickets.take(Ticket(id="7", ticket="{}"))
