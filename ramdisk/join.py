"""Joining by this boot's ticket: tried for ever, and what stands in the way is said on the consoles.

A process that was restarted has its identity already, and joins no second time. A ticket that the control plane
refuses does not get better: its carriers are looked at again, since the site's agent may have put a fresh one there.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from importlib import import_module

import structlog

from agent.backoff import Backoff
from agent.endpoint import Endpoint
from agent.errors import IdentityError, JoinFailed
from agent.identity import Identity, IdentityStore
from protocol.boot_ticket import BootTicket
from protocol.machine_facts import MachineFacts
from ramdisk.consoles import Announcer
from ramdisk.network import Network
from ramdisk.ticket import Carriers, FoundTicket
from ramdisk.wall_clock import correct_clock, is_date_fault

__all__ = ["Joining", "JoinsWith"]

_log = structlog.get_logger("ramdisk.join")
_TICKET_QUICK, _TICKET_SLOW = 0.5, 5.0
_QUICK_LOOKS = 60
_REFUSED_SECONDS = 30.0
_NETWORK_SECONDS = 30.0
_PASSING = frozenset({"", "BUSY"})
"""Answers after which the same ticket may be taken later."""
_WHAT_TO_DO = (
    "This machine needs a new ticket: start it anew by the control plane (rackwright nodes commission, deploy or "
    "rescue), which makes one. It goes on looking for one"
)

JoinsWith = Callable[[str, str, IdentityStore, MachineFacts], Awaitable[Identity]]


async def _join(url: str, token: str, store: IdentityStore, machine: MachineFacts) -> Identity:
    # Loading it takes a while, in which the network is to be kept.
    await asyncio.to_thread(import_module, "agent.joining")
    from agent.joining import join

    return await join(url, token, store, force=True, machine=machine)


class Joining:
    """`facts`: which machine this is; it blocks."""

    def __init__(
        self,
        store: IdentityStore,
        carriers: Carriers,
        network: Network,
        announcer: Announcer,
        facts: Callable[[], MachineFacts],
        *,
        backoff: Backoff | None = None,
        join_with: JoinsWith = _join,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._carriers = carriers
        self._network = network
        self._announcer = announcer
        self._facts = facts
        self._backoff = backoff or Backoff(base=1.0, cap=30.0)
        self._join_with = join_with
        self._chance = chance or random.Random()
        self._refused: set[str] = set()
        self._failures = 0

    async def identity(self) -> Identity:
        """Who this machine's agent is now. Returns only when it has joined."""
        with contextlib.suppress(IdentityError):
            known = self._store.current()
            if known is not None:
                await self._set_network_again()
                return known
        while True:
            found = await self._find_ticket()
            self._network.configure(found.ticket.network)
            await self._wait_for_network()
            identity = await self._attempt(found)
            if identity is not None:
                await asyncio.to_thread(self._carriers.wipe)
                return identity

    async def _set_network_again(self) -> None:
        """A restarted process sets the network as the one before it did: the ticket itself is gone."""
        self._network.configure(await asyncio.to_thread(self._network.remembered))

    async def _find_ticket(self) -> FoundTicket:
        looks = 0
        while True:
            look = await asyncio.to_thread(self._carriers.look, frozenset(self._refused))
            if look.found is not None:
                self._tell_of(look.found)
                return look.found
            looks += 1
            if looks == _QUICK_LOOKS or (looks > _QUICK_LOOKS and look.faults):
                self._announcer.say(_none_found(look.faults, refused=look.refused), about="ticket")
            quick = looks < _QUICK_LOOKS and not self._refused
            await asyncio.sleep(_TICKET_QUICK if quick else _TICKET_SLOW)

    def _tell_of(self, found: FoundTicket) -> None:
        self._announcer.say(
            f"ticket for {found.ticket.node_id} found {found.carrier}; control plane {found.ticket.control_plane}",
            about="ticket",
        )
        if found.exposed:
            self._announcer.say(
                "the ticket is on the kernel's command line, where everybody on this machine can read it: it is dead "
                "once the machine has joined",
                about="exposed",
            )

    async def _wait_for_network(self) -> None:
        """Not for ever: an address may be there that is not seen as one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NETWORK_SECONDS):
                await self._network.ready.wait()

    async def _attempt(self, found: FoundTicket) -> Identity | None:
        ticket = found.ticket
        try:
            facts = await asyncio.to_thread(self._facts)
            identity = await self._join_with(ticket.control_plane, ticket.token.reveal(), self._store, facts)
        except IdentityError as error:
            self._announcer.say(f"the identity cannot be kept: {error.message}", about="join")
        except JoinFailed as error:
            if await self._set_clock(error, ticket):
                return None
            if error.refusal not in _PASSING:
                self._refused.add(ticket.token.reveal())
                self._announcer.say(f"{error.message} ({error.refusal}). {_WHAT_TO_DO}", about="join")
                await asyncio.sleep(self._chance.uniform(0, _REFUSED_SECONDS / 10))
                return None
            network = "" if self._network.ready.is_set() else f". Network: {self._network.state()}"
            self._announcer.say(f"cannot join yet: {error.message}{network}", about="join")
        except Exception:
            # Whatever it is, a machine that stops trying helps nobody.
            _log.exception("join_failed_unexpectedly")
            self._announcer.say("cannot join yet: the agent itself failed, see its log", about="join")
        else:
            self._announcer.say(f"joined as {identity.facts.agent_id} for {identity.facts.node or ticket.node_id}")
            return identity
        self._failures += 1
        await asyncio.sleep(self._backoff.delay(self._failures, self._chance))
        return None

    async def _set_clock(self, error: JoinFailed, ticket: BootTicket) -> bool:
        """Whether the clock was the reason, and is right now."""
        if not is_date_fault(error):
            return False
        wrong_by = await asyncio.to_thread(correct_clock, Endpoint.parse(ticket.control_plane))
        if wrong_by is None:
            return False
        self._announcer.say(f"the clock was wrong by {abs(wrong_by) / 3600:.1f} h: it is set by the control plane's")
        return True


def _none_found(faults: list[str], *, refused: bool) -> str:
    if refused:
        return f"only the refused ticket is there. {_WHAT_TO_DO}"
    listed = f" ({'; '.join(faults)})" if faults else ""
    return (
        "no boot ticket was found in the initial ramdisk, on a boot medium with the label RACKWRIGHT, or on the "
        f"kernel's command line{listed}. {_WHAT_TO_DO}"
    )
