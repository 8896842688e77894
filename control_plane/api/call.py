"""What a verb's handler is given besides its request, and what a handler is."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from control_plane.engine.registry import StepRegistry, default_registry
from control_plane.engine.timing import Timing
from control_plane.horizon import Horizon
from control_plane.metal.bindings import Bindings
from control_plane.metal.verbs import Tools
from control_plane.records import CommandRow, SessionRow
from control_plane.store import Store, Transaction
from control_plane.tokens import Principal, TokenCache
from control_plane.waiters import Waiters
from protocol.errors import RequestCode, RequestError
from protocol.frames import Progress

__all__ = ["Call", "Handler", "Links", "NoLinks", "Services", "Then", "Work", "default_audit"]


class Links(Protocol):
    """The agents that are connected to this process; the gateway is one."""

    @property
    def connected(self) -> Mapping[str, object]: ...

    def live_session(self, agent_id: str) -> SessionRow | None: ...

    async def deliver(self, row: CommandRow, now: int | None = None) -> None: ...

    def progress_of(self, row: CommandRow) -> Progress | None: ...


class NoLinks:
    """No agent is connected here: for a process that serves no agents."""

    @property
    def connected(self) -> Mapping[str, object]:
        return {}

    def live_session(self, agent_id: str) -> SessionRow | None:
        return None

    async def deliver(self, row: CommandRow, now: int | None = None) -> None:
        return None

    def progress_of(self, row: CommandRow) -> Progress | None:
        return None


class Services:
    """What the API's process has."""

    def __init__(
        self,
        store: Store,
        *,
        ca_sha256: str,
        agent_url: str,
        waiters: Waiters,
        links: Links | None = None,
        registry: StepRegistry | None = None,
        timing: Timing | None = None,
        bindings: Bindings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.ca_sha256 = ca_sha256
        self.agent_url = agent_url
        self.waiters = waiters
        self.links: Links = links or NoLinks()
        self.registry = default_registry() if registry is None else registry
        self.timing = timing or Timing()
        self.metal = Tools(self.registry, self.timing, bindings or Bindings())
        self.tokens = TokenCache(clock)
        self.horizon = Horizon(store, clock=clock)


class Call(msgspec.Struct, frozen=True):
    """One request, as far as its handler needs to know who asks."""

    principal: Principal
    tenant_id: str
    """The tenant that it is about; `*` only where the verb may span all of them."""
    request_id: str
    services: Services

    @property
    def tenant(self) -> str:
        """One tenant's id. Raises RequestError where the request is about all of them."""
        if self.tenant_id == "*":
            raise RequestError(RequestCode.INVALID_INPUT, "name the tenant: this token is good for every one")
        return self.tenant_id


Work = Callable[[Transaction, Call, Any], Any]
"""Does the verb's work in one transaction; a pure function of it, run again where the store must."""
Then = Callable[[Call, Any, Any], Awaitable[Any]]
"""What follows once the work is durable: (call, request, the work's answer) to the answer to give."""


def default_audit(answer: Any) -> tuple[str, dict[str, object]]:
    return str(answer.id), {}


class Handler(msgspec.Struct, frozen=True):
    """A verb's doing."""

    work: Work | None = None
    then: Then | None = None
    audited: Callable[[Any], tuple[str, dict[str, object]]] = default_audit
    """The id of the thing that a mutation's answer is about, and what else its audit line tells."""
    around: Callable[[Call, Any], Awaitable[Any]] | None = None
    """In place of work and then: a handler that runs its own transactions, and writes its own audit line in them."""
