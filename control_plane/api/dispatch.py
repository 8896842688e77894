"""A request's way through the rules: who asks, may they, is it sound, do it, write it down.

The order is what keeps other people's things unseen: the right to the verb is checked before the body is looked at,
the tenant before anything is read, and another tenant's thing is looked for as if it did not exist.
"""

import logging
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from control_plane import audit
from control_plane.api.call import Call, Handler, Services
from control_plane.api.handlers.table import HANDLERS
from control_plane.api.metrics import Metrics
from control_plane.api.shapes.common import Request
from control_plane.api.verbs import Verb
from control_plane.permissions import allows
from control_plane.records import ALL_TENANTS
from control_plane.store import Constraint, ConstraintViolated, Transaction
from control_plane.tokens import ApiToken, Principal, authenticate
from protocol.errors import Issue, RequestCode, RequestError
from protocol.validation import faults

__all__ = ["Dispatcher"]

_log = logging.getLogger("control_plane.api")
_NAMES_A_THING = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Dispatcher:
    """Every verb, for whichever door a request comes through."""

    def __init__(self, services: Services, metrics: Metrics) -> None:
        self.services = services
        self.metrics = metrics

    async def principal(self, text: str) -> Principal:
        """Who presents this bearer token. Raises RequestError UNAUTHENTICATED."""
        tokens = self.services.tokens
        known = tokens.get(text)
        if known is not None:
            return known
        token = ApiToken.parse(text)
        if token is None:
            raise RequestError(
                RequestCode.UNAUTHENTICATED,
                "this is no API token: one begins with rwt_ and is made by `rackwright control-plane token create`",
            )
        principal, now = await self.services.store.read(_authenticate, token)
        tokens.put(text, principal, now)
        return principal

    async def call(self, verb: Verb, raw: object, principal: Principal, request_id: str) -> Any:
        """Does it. Raises RequestError, StoreError."""
        call, request = await self.admit(verb, raw, principal, request_id)
        handler = HANDLERS[verb.id]
        try:
            return await self._done(verb, handler, call, request)
        except ConstraintViolated as error:
            # Two requests at once: each alone would have been told by a look beforehand.
            if error.kind not in (Constraint.UNIQUE, Constraint.FOREIGN_KEY):
                raise
            raise RequestError(
                RequestCode.CONFLICT, "another request changed the same things at the same moment: look and try again"
            ) from error
        except RequestError as error:
            if error.code is RequestCode.FORBIDDEN:
                await self._record_denial(verb, call.tenant_id, raw, principal, request_id, error.message)
            raise

    async def admit(self, verb: Verb, raw: object, principal: Principal, request_id: str) -> tuple[Call, Any]:
        """Who asks about which tenant, and the typed request. Raises RequestError, StoreError."""
        await self.permit(verb, raw, principal, request_id)
        request = _request(verb, raw)
        tenant_id = await self._tenant(verb, request, principal, request_id)
        return Call(principal, tenant_id, request_id, self.services), request

    async def permit(self, verb: Verb, raw: object, principal: Principal, request_id: str) -> None:
        """Raises RequestError FORBIDDEN, with a line in the audit trail, unless the verb is allowed at all."""
        if allows(principal.permissions, verb.action):
            return
        message = f"this token is not allowed {verb.action}"
        await self._record_denial(verb, principal.tenant_id, raw, principal, request_id, message)
        raise RequestError(RequestCode.FORBIDDEN, message)

    async def _done(self, verb: Verb, handler: Handler, call: Call, request: Request) -> Any:
        if handler.around is not None:
            return await handler.around(call, request)
        assert handler.work is not None
        started = time.perf_counter()
        if verb.mutation:
            answer = await self.services.store.write(_mutate, verb, handler, call, request)
        elif verb.tenantless:
            answer = handler.work(_NO_TRANSACTION, call, request)
        else:
            answer = await self.services.store.read(handler.work, call, request)
        self.metrics.store_seconds.labels("write" if verb.mutation else "read").observe(time.perf_counter() - started)
        return answer if handler.then is None else await handler.then(call, request, answer)

    async def _tenant(self, verb: Verb, request: Request, principal: Principal, request_id: str) -> str:
        asked = request.tenant_id
        if principal.tenant_id == ALL_TENANTS:
            if asked is None and not verb.spans and not verb.tenantless:
                issue = Issue("tenantId", "is required: this token is good for every tenant")
                raise RequestError.invalid([issue])
            return asked or ALL_TENANTS
        if asked is not None and asked != principal.tenant_id:
            message = "this token is for another tenant"
            raw = msgspec.to_builtins(request)
            await self._record_denial(verb, principal.tenant_id, raw, principal, request_id, message)
            raise RequestError(RequestCode.FORBIDDEN, message)
        return principal.tenant_id

    async def _record_denial(
        self, verb: Verb, tenant_id: str, raw: object, principal: Principal, request_id: str, why: str
    ) -> None:
        _log.warning("refused: %s asked for %s: %s", principal.id, verb.id, why)
        await self.services.store.write(_deny, verb, tenant_id, raw, principal, request_id, why)


class _NoTransaction:
    """Stands where a verb reads nothing from the store."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this verb has no transaction, and so no {name}")


_NO_TRANSACTION: Any = _NoTransaction()


def _mutate(tx: Transaction, verb: Verb, handler: Handler, call: Call, request: Request) -> Any:
    """The work and its audit line, stored together or not at all."""
    assert handler.work is not None
    answer = handler.work(tx, call, request)
    thing, detail = handler.audited(answer)
    audit.record(
        tx,
        tenant_id=getattr(answer, "tenant_id", call.tenant_id),
        actor=call.principal.id,
        action=verb.action,
        resource=f"{verb.resource}/{thing}",
        request_id=call.request_id,
        detail={"verb": verb.id, **detail},
    )
    return answer


def _deny(
    tx: Transaction, verb: Verb, tenant_id: str, raw: object, principal: Principal, request_id: str, why: str
) -> None:
    named = raw.get(verb.subject) if isinstance(raw, Mapping) and verb.subject else None
    thing = named if isinstance(named, str) and _NAMES_A_THING.fullmatch(named) else "*"
    audit.record(
        tx,
        tenant_id=tenant_id,
        actor=principal.id,
        action=verb.action,
        resource=f"{verb.resource}/{thing}",
        request_id=request_id,
        decision="denied",
        detail={"verb": verb.id, "reason": why},
    )


def _authenticate(tx: Transaction, token: ApiToken) -> tuple[Principal, int]:
    return authenticate(tx, token), tx.now()


def _request(verb: Verb, raw: object) -> Request:
    """The typed request. Raises RequestError INVALID_INPUT with every fault."""
    beyond_types = verb.request.faults(raw) if isinstance(raw, Mapping) else []
    if not beyond_types:
        try:
            return msgspec.convert(raw, verb.request)
        except (msgspec.ValidationError, RecursionError):
            pass
    issues = faults(verb.request, raw)
    told = {issue.path for issue in issues}
    issues += [issue for issue in beyond_types if issue.path not in told]
    if not issues:
        # What converts field by field and not as a whole: msgspec names the first fault itself.
        try:
            return msgspec.convert(raw, verb.request)
        except msgspec.ValidationError as error:
            issues = [Issue("", str(error))]
    raise RequestError.invalid(issues)
