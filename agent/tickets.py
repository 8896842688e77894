"""Boot tickets, and what admits to images, asked for over the agent's own link. They are kept in memory only."""

import asyncio
import contextlib
from collections.abc import Callable
from itertools import count
from typing import Literal, NamedTuple

import msgspec
import structlog

from protocol.boot_ticket import BootTicket, from_json
from protocol.errors import ErrorCode, OperationError
from protocol.frames import AgentFrame, Ticket, TicketRequest
from protocol.machine_facts import MachineFacts
from protocol.secret import Secret

__all__ = ["TicketAnswer", "Tickets"]

_log = structlog.get_logger("agent.tickets")
_ASK_AGAIN_SECONDS = 2.0
"""A frame is lost with the link that it waits for: it is said again, and a second answer is harmless."""
_PATIENCE = 20.0


class TicketAnswer(NamedTuple):
    """`ticket` None: the one at hand is still good. `joined`: the machine has joined since that one was made."""

    node_id: str
    ticket: BootTicket | None
    joined: bool = False


class Tickets:
    """`say` sends a frame to the control plane; `take` is given its answers."""

    def __init__(self, say: Callable[[AgentFrame], None]) -> None:
        self._say = say
        self._numbers = count(1)
        self._waiting: dict[str, asyncio.Future[Ticket]] = {}

    async def request(
        self, node_id: str, purpose: Literal["ramdisk", "daemon"] = "ramdisk", *, patience: float = _PATIENCE
    ) -> BootTicket:
        """A new ticket. Raises OperationError as `renew` does."""
        answer = await self._ask_ticket(TicketRequest(id="", node_id=node_id, purpose=purpose), patience)
        if answer.ticket is None:
            raise OperationError(ErrorCode.CONFLICT, "the control plane gave no boot ticket")
        return answer.ticket

    async def renew(self, node_id: str, held: str, *, patience: float = _PATIENCE) -> TicketAnswer:
        """Another one where the one at hand (`held`: its token's id) was used, or will not last.

        Raises OperationError: UNREACHABLE where nothing was answered within `patience` seconds, CONFLICT where it
        was refused.
        """
        return await self._ask_ticket(TicketRequest(id="", node_id=node_id, holds=held), patience)

    async def for_machine(
        self, machine: MachineFacts, among: list[str], *, patience: float = _PATIENCE
    ) -> TicketAnswer:
        """The ticket of the one of these nodes that is known so. Raises OperationError as `renew` does."""
        return await self._ask_ticket(TicketRequest(id="", machine=machine, among=among), patience)

    async def admission(self, node_id: str, checksum: str, *, patience: float = _PATIENCE) -> Secret:
        """What admits the machine to the image of this checksum at its site; a ramdisk asks for its own machine, with
        no id. Raises OperationError as `renew` does."""
        wanted = TicketRequest(id="", node_id=node_id, purpose="image", checksum=checksum)
        answer = await self._ask(wanted, patience)
        if answer.ticket is None:
            raise OperationError(ErrorCode.CONFLICT, "the control plane did not say what admits to the image")
        return Secret(answer.ticket)

    def take(self, answer: Ticket) -> None:
        """An answer that nobody waits for any more is dropped: its ticket dies with a later one."""
        waiting = self._waiting.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask_ticket(self, wanted: TicketRequest, patience: float) -> TicketAnswer:
        answer = await self._ask(wanted, patience)
        try:
            ticket = None if answer.ticket is None else from_json(answer.ticket)
            return TicketAnswer(answer.node_id, ticket, answer.joined)
        except ValueError as error:
            raise OperationError(ErrorCode.CONFLICT, f"the boot ticket cannot be read: {error}") from None

    async def _ask(self, wanted: TicketRequest, patience: float) -> Ticket:
        number = str(next(self._numbers))
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        request = msgspec.structs.replace(wanted, id=number)
        try:
            async with asyncio.timeout(patience):
                answer = await self._said_until_answered(request, future)
        except TimeoutError:
            raise OperationError(
                ErrorCode.UNREACHABLE, f"the control plane gave no {_what(wanted)} within {patience:g} s"
            ) from None
        finally:
            del self._waiting[number]
        if answer.refusal is not None:
            _log.warning("ticket_refused", node=answer.node_id or wanted.node_id, reason=answer.refusal)
            raise OperationError(ErrorCode.CONFLICT, f"the control plane gives no {_what(wanted)}: {answer.refusal}")
        return answer

    async def _said_until_answered(self, request: TicketRequest, future: "asyncio.Future[Ticket]") -> Ticket:
        while True:
            self._say(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN_SECONDS):
                    return await asyncio.shield(future)


def _what(wanted: TicketRequest) -> str:
    return "admission to the image" if wanted.purpose == "image" else "boot ticket"
