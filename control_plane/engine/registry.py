"""The steps that profiles can use: registered Python functions, and what agents do by a command kind of their own.

A plugin registers its steps in a function that it names as an entry point of the group `rackwright.steps`:

    def register(registry: StepRegistry) -> None:
        @registry.step("example.notify", with_=Notify, timeout="1m")
        async def notify(context: StepContext, arguments: Notify) -> dict[str, object]:
            ...

A function may run more than once for one attempt (a crash, `not_ready`), so what it does to the outside goes through
`context.await_command`, or carries `context.key` as its idempotency key.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, TypeVar

import msgspec

from control_plane.engine.context import StepContext
from control_plane.engine.states import RunsOn
from protocol.commands import SELF_TERMINATING, CommandKind
from protocol.durations import parse_duration

__all__ = ["ENTRY_POINT_GROUP", "Definition", "NoArguments", "StepFunction", "StepRegistry", "default_registry"]

_log = logging.getLogger("control_plane.engine.registry")
ENTRY_POINT_GROUP = "rackwright.steps"
ArgumentsT = TypeVar("ArgumentsT", bound=msgspec.Struct)
StepFunction = Callable[[StepContext, Any], Awaitable[dict[str, object] | None]]


class NoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `with` of a step that takes nothing."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One registered step."""

    id: str
    runs_on: RunsOn
    with_: type[msgspec.Struct] | None
    """The type of `with`; None for a command whose agent alone knows it."""
    function: StepFunction | None = None
    """The code of a control-plane step; None for a step that is one command of the kind `id`."""
    relays: frozenset[RunsOn] = frozenset()
    """Other places that a profile may name with `on`: the agents that a control-plane step sends its commands to, or
    those that can do a command beside its home."""
    timeout_ms: int
    retries: int = 0
    cleanup: str | None = None
    """The id of the registered step that tidies up after this one; it gets the same `with`."""
    summary: str = ""

    @property
    def await_rejoin(self) -> bool:
        """A command that ends the process that runs it is awaited by the machine's return."""
        return self.id in SELF_TERMINATING


class StepRegistry:
    """Definitions by id. Registering an id twice is refused: which one would run must not depend on import order."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._definitions.values())

    def get(self, step_id: str) -> Definition | None:
        return self._definitions.get(step_id)

    def add(self, definition: Definition) -> None:
        if definition.id in self._definitions:
            raise ValueError(f"the step {definition.id!r} is registered already")
        if definition.function is None and definition.runs_on is RunsOn.CONTROL_PLANE:
            raise ValueError(f"the step {definition.id!r} runs on the control plane and has no code")
        self._definitions[definition.id] = definition

    def step(
        self,
        step_id: str,
        *,
        with_: type[ArgumentsT] = NoArguments,  # type: ignore[assignment]
        relays: tuple[RunsOn | str, ...] = (),
        timeout: str | int = "10m",
        retries: int = 0,
        cleanup: str | None = None,
    ) -> Callable[
        [Callable[[StepContext, ArgumentsT], Awaitable[dict[str, object] | None]]],
        Callable[[StepContext, ArgumentsT], Awaitable[dict[str, object] | None]],
    ]:
        """Registers the decorated coroutine function as the code of a control-plane step."""

        def register(
            function: Callable[[StepContext, ArgumentsT], Awaitable[dict[str, object] | None]],
        ) -> Callable[[StepContext, ArgumentsT], Awaitable[dict[str, object] | None]]:
            self.add(
                Definition(
                    id=step_id,
                    runs_on=RunsOn.CONTROL_PLANE,
                    with_=with_,
                    function=function,
                    relays=frozenset(RunsOn(relay) for relay in relays),
                    timeout_ms=parse_duration(timeout),
                    retries=retries,
                    cleanup=cleanup,
                    summary=(function.__doc__ or "").strip().partition("\n")[0],
                )
            )
            return function

        return register


def default_registry() -> StepRegistry:
    """The steps of this product and of every installed plugin. A plugin that fails to load is logged and left out."""
    # The steps know the registry, so it must be there before they are.
    from control_plane.metal.steps import register

    registry = StepRegistry()
    register(registry)
    for kind, (home, *others) in _PLACES.items():
        registry.add(
            Definition(
                id=kind.value,
                runs_on=home,
                with_=None,
                relays=frozenset(others),
                timeout_ms=900_000,
                summary=f"the command {kind}",
            )
        )
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            point.load()(registry)
        except Exception:
            _log.exception("the steps of the plugin %s could not be registered", point.name)
    return registry


# Where a command's step runs, its home first. Never on a site agent: it would reboot the site's own host.
_PLACES = {
    CommandKind.BOOT_KEXEC: (RunsOn.RAMDISK,),
    CommandKind.NODE_REBOOT: (RunsOn.DAEMON, RunsOn.RAMDISK),
    CommandKind.DAEMON_UPGRADE: (RunsOn.DAEMON,),
    CommandKind.TASK_RUN: (RunsOn.RAMDISK, RunsOn.DAEMON),
}
