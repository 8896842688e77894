"""The API for Python code in the control plane's own process: the same verbs, rules and audit lines, without HTTP.

    workflow = await compute.api.workflows.get(credential, {"tenantId": …, "nodeId": …, "workflowId": …})

`compute` is `ControlPlane.compute`. A credential is an API token's text, or a `Principal` that is known already. The
input is what the HTTP body would be; the answer is the verb's view.
"""

from collections.abc import Mapping
from typing import Any

from control_plane.api.dispatch import Dispatcher
from control_plane.api.verbs import VERBS, Verb
from control_plane.tokens import Principal
from protocol.ids import new_id

__all__ = ["Compute"]


class Compute:
    """`compute.api.<group>.<method>(credential, input)`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.api = _Groups(dispatcher)


class _Groups:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def __getattr__(self, group: str) -> "_Methods":
        if any(verb.group == group for verb in VERBS.values()):
            return _Methods(self._dispatcher, group)
        raise AttributeError(f"the API has no group {group!r}")


class _Methods:
    def __init__(self, dispatcher: Dispatcher, group: str) -> None:
        self._dispatcher = dispatcher
        self._group = group

    def __getattr__(self, method: str) -> "_Method":
        verb = VERBS.get(f"{self._group}.{method}")
        if verb is None:
            raise AttributeError(f"{self._group} has no method {method!r}")
        return _Method(self._dispatcher, verb)


class _Method:
    def __init__(self, dispatcher: Dispatcher, verb: Verb) -> None:
        self._dispatcher = dispatcher
        self._verb = verb
        self.__doc__ = verb.summary

    async def __call__(
        self, credential: str | Principal, request: Mapping[str, Any] | None = None, *, request_id: str | None = None
    ) -> Any:
        """Does it. Raises RequestError, StoreError."""
        principal = await self._dispatcher.principal(credential) if isinstance(credential, str) else credential
        return await self._dispatcher.call(self._verb, dict(request or {}), principal, request_id or new_id("req"))
