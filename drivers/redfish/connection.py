"""One BMC as one credential sees it: one request under way at a time, one session, what was learnt of the service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from drivers.concealment import conceal
from drivers.driver import Call, Environment
from drivers.redfish import messages, waiting
from drivers.redfish.document import Document, link, number, path_of, same_path
from drivers.redfish.failures import NoAnswer, NotSent, Refused
from drivers.redfish.messages import Note
from drivers.redfish.patching import patch
from drivers.redfish.service import Service
from drivers.redfish.session import ROOT, SESSION_SERVICE, LoginKind, Session, redirected
from drivers.redfish.transport import Answer, Transport
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError

__all__ = ["RedfishConnection"]

_EXCHANGE_SECONDS = 60.0
_READ_PATIENCE = 60.0
_PATIENCE = 20.0
_IDLE_SECONDS = 60.0
_IDLE_SECONDS_CLOSED = 2.0
_CLOSE_SECONDS = 5.0
_LICENCE_SECONDS = 600.0
_LOOK_SECONDS = 10.0
"""Of an operation's time, what is kept back from a change so that its effect can still be looked at."""


class RedfishConnection:
    """The one owner of a BMC's session. Made without I/O; logs in when first used, and out when idle or closed."""

    def __init__(self, target: Target, environment: Environment) -> None:
        self.target = target
        self.endpoint = target.endpoint
        self._transport = Transport(target, self.endpoint, environment.pins)
        self._session = Session(self._transport, target, environment.breaker)
        self.service = Service(self)
        self._lock = asyncio.Lock()
        self._licences: dict[str, tuple[float, int, list[Note]]] = {}
        self._root_refused = False
        self._closings = 0
        self._idle_seconds = _IDLE_SECONDS
        self._used = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._logout: asyncio.Task[None] | None = None

    async def get(self, path: str, call: Call, *, patience: float = _READ_PATIENCE) -> Document:
        """The resource. Raises Refused where the BMC says no, OperationError for everything else.

        `patience`: seconds for which a BMC that is busy is asked again.
        """
        return self.document_of(await self.read(path, call, patience=patience))

    def document_of(self, answer: Answer) -> Document:
        """The resource in an answer. Raises Refused for an error that was sent as a success (Intel, HPE Cray)."""
        document = answer.document()
        if "error" in document and "@odata.id" not in document:
            raise self._refused(answer)
        return document

    async def find(self, path: str | None, call: Call) -> Document | None:
        """An optional resource: None where there is none or it cannot be read now, so that the others still can."""
        if path is None:
            return None
        try:
            return await self.get(path, call, patience=0)
        except (Refused, NoAnswer):
            return None
        except OperationError as error:
            if error.code is ErrorCode.BMC_ERROR:
                return None
            raise

    async def find_patiently(self, path: str | None, call: Call) -> Document | None:
        """An optional resource whose absence decides something. None where there is none, or only an error in its
        place; a BMC that is busy is waited for. Raises OperationError where it stays busy or cannot be asked."""
        if path is None:
            return None
        try:
            return await self.get(path, call, patience=_PATIENCE)
        except Refused as refused:
            if refused.code is ErrorCode.BUSY:
                raise
        except NoAnswer:
            raise
        except OperationError as error:
            if error.code is not ErrorCode.BMC_ERROR:
                raise
        return None

    async def read(self, path: str, call: Call, *, patience: float = _READ_PATIENCE) -> Answer:
        """The answer to a GET, asked again where that is harmless and may help: after a dropped connection, a session
        that ended, a busy BMC, a BMC that wants to compress."""
        self._check_licence("GET", path)
        fresh = logged_in_again = encoded = moved = False
        waited, attempt, closings = 0.0, 0, self._closings
        while True:
            try:
                answer = await self._exchange("GET", path, call, fresh=fresh, encoded=encoded)
            except NoAnswer as failure:
                # Once closed, asking again would log in anew, and leave a session behind.
                if not failure.dropped or fresh or closings != self._closings:
                    raise
                self._transport.note_drop()
                fresh = True
                continue
            status = answer.status
            if 200 <= status < 300:
                if logged_in_again:
                    await self._learn_session_timeout(call)
                return answer
            if status == 401 and not logged_in_again:
                self._rejected(answer)
                logged_in_again = True
            elif status == 406 and not encoded:
                # HPE serves its registries compressed only.
                encoded = True
            elif status in (301, 302, 307, 308) and not moved:
                path = self._moved(path, answer)
                moved = True
            elif status in (429, 503) and waited < patience:
                seconds = max(0.05, waiting.pause(attempt, waiting.retry_after(answer.headers.get("Retry-After"))))
                attempt += 1
                if waited + seconds > patience or seconds >= call.remaining:
                    raise self._refused(answer)
                waited += seconds
                await call.sleep(seconds, f"{self.endpoint} was busy")
            else:
                raise self._refused(answer)

    async def act(
        self, method: str, path: str, body: Document | None, call: Call, *, if_match: str | None = None
    ) -> Answer:
        """Sends a change exactly once. Raises Refused (not done), NoAnswer (look!), NotSent (not done).

        A session that had ended is a Refused with status 401; the next request logs in again.
        """
        self._check_licence(method, path)
        content = None if body is None else msgspec.json.encode(body)
        answer = await self._exchange(method, path, call, body=content, if_match=if_match)
        if answer.ok:
            return answer
        if answer.status == 401:
            self._rejected(answer)
        error = self._refused(answer)
        password = body.get("Password") if body is not None else None
        if isinstance(password, str):
            conceal(error, password)
        raise error

    async def order(self, path: str, body: Document, call: Call, *, look: str) -> Answer:
        """An action that is given again, once, where the session had ended: that refusal proves that it was not done,
        and reading `look` renews the session. Raises what `act` raises."""
        try:
            return await self.act("POST", path, body, call)
        except Refused as refused:
            if refused.status != 401:
                raise
        await self.read(look, call)
        return await self.act("POST", path, body, call)

    async def patch(self, path: str, body: Document, call: Call) -> Answer:
        """A PATCH by the entity-tag rules (`drivers.redfish.patching`)."""
        return await patch(self, path, body, call)

    async def aclose(self) -> None:
        """Ends the session at the BMC. Never raises; safe to call twice."""
        self._closings += 1
        self._idle_seconds = _IDLE_SECONDS_CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                held = await self._lock.acquire()
        try:
            await self._session.end()
            await self._transport.aclose()
        finally:
            if held:
                self._lock.release()

    def forget_root(self) -> None:
        """After a restart of the BMC its service may be another version."""
        self._session.root, self._root_refused = {}, False

    @property
    def logins(self) -> int:
        """How often this connection has logged in: one more tells that the BMC had ended the session."""
        return self._session.logins

    async def root(self, call: Call) -> Document:
        """The service root as it was read for the login; read with the login where the BMC wants that. Empty where
        it shows none at all: then the standard's own paths are tried."""
        if not self._session.root:
            async with self._turn(call):
                try:
                    await self._login(call)
                except OperationError as error:
                    self._hide_secret(error)
                    raise
                finally:
                    self._note_use(call)
        if not self._session.root and not self._root_refused:
            try:
                self._session.root = await self.get(ROOT, call)
            except Refused as refused:
                if refused.status not in (401, 403):
                    raise
                self._root_refused = True
        return self._session.root

    async def _exchange(
        self,
        method: str,
        path: str,
        call: Call,
        *,
        body: bytes | None = None,
        if_match: str | None = None,
        fresh: bool = False,
        encoded: bool = False,
    ) -> Answer:
        async with self._turn(call):
            try:
                headers = await self._login(call)
                if body is not None or if_match is not None or encoded:
                    headers = dict(headers)
                    if body is not None:
                        headers["Content-Type"] = "application/json"
                    if if_match is not None:
                        headers["If-Match"] = if_match
                    if encoded:
                        headers["Accept-Encoding"] = "gzip, deflate"
                remaining = call.remaining
                if method != "GET":
                    remaining = max(remaining - _LOOK_SECONDS, remaining / 2)
                return await self._transport.exchange(
                    method, path, headers, min(_EXCHANGE_SECONDS, remaining), body, fresh=fresh
                )
            except OperationError as error:
                self._hide_secret(error)
                raise
            finally:
                self._note_use(call)

    async def _login(self, call: Call) -> dict[str, str]:
        """The headers of this user's requests. A login that had no answer says nothing of the request after it."""
        try:
            return await self._session.headers(call)
        except NoAnswer as failure:
            raise NotSent(failure.code, failure.message) from failure

    @contextlib.asynccontextmanager
    async def _turn(self, call: Call) -> AsyncIterator[None]:
        if self._lock.locked():
            try:
                async with asyncio.timeout(call.remaining):
                    await self._lock.acquire()
            except TimeoutError:
                raise OperationError(
                    ErrorCode.TIMEOUT, f"no time was left while other requests to {self.endpoint} were under way"
                ) from None
        else:
            await self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _rejected(self, answer: Answer) -> None:
        error = self._session.rejected(answer)
        if error is not None:
            self._hide_secret(error)
            raise error

    def _refused(self, answer: Answer) -> OperationError:
        if 300 <= answer.status < 400:
            error = redirected(self.endpoint, answer.path, answer.headers.get("Location"))
            self._hide_secret(error)
            return error
        notes = messages.notes_of(answer.said())
        wait = waiting.retry_after(answer.headers.get("Retry-After"))
        refused = Refused.from_answer(answer.status, notes, f"{answer.method} {answer.path}", wait)
        self._hide_secret(refused)
        if refused.code is ErrorCode.LICENSE_REQUIRED:
            until = asyncio.get_running_loop().time() + _LICENCE_SECONDS
            self._licences[f"{answer.method} {answer.path}"] = (until, refused.status, refused.notes)
        return refused

    def _check_licence(self, method: str, path: str) -> None:
        """A licence that was missing a while ago is not asked for again: the answer stays the same."""
        if not self._licences:
            return
        known = self._licences.get(f"{method} {path}")
        if known is None:
            return
        until, status, notes = known
        if asyncio.get_running_loop().time() < until:
            refused = Refused.from_answer(status, notes, f"{method} {path}")
            self._hide_secret(refused)
            raise refused
        del self._licences[f"{method} {path}"]

    def _moved(self, path: str, answer: Answer) -> str:
        """The other spelling of the same path that a BMC leads to; anything else is refused."""
        location = answer.headers.get("Location") or ""
        own = location.startswith(("/", f"{self.target.parsed}/"))
        if own and path_of(location) != path and same_path(path_of(location), path):
            return path_of(location)
        raise self._refused(answer)

    def _hide_secret(self, error: OperationError) -> None:
        """A BMC may repeat what it was sent; the password must not travel on in its words."""
        conceal(error, *self._session.secrets)

    async def _learn_session_timeout(self, call: Call) -> None:
        """A session ended unasked: from now on this connection logs out before the BMC does it."""
        if self._idle_seconds < _IDLE_SECONDS:
            return
        with contextlib.suppress(OperationError):
            answer = await self._exchange("GET", link(self._session.root, "SessionService") or SESSION_SERVICE, call)
            seconds = number(answer.document(), "SessionTimeout") if answer.ok else None
            if seconds is not None and seconds > 0:
                self._idle_seconds = min(_IDLE_SECONDS, seconds * 0.8)

    def _note_use(self, call: Call) -> None:
        pin = self._transport.first_use_pin
        if pin is not None:
            call.observed["tlsFingerprint"] = pin
        loop = asyncio.get_running_loop()
        self._used = loop.time()
        if self._timer is None and self._session.kind is not LoginKind.NONE:
            self._timer = loop.call_later(self._idle_seconds, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._used + self._idle_seconds - loop.time()
        if left > 0.01:
            self._timer = loop.call_later(left, self._look_whether_idle)
        else:
            self._timer = None
            self._logout = loop.create_task(self._log_out_when_idle())

    async def _log_out_when_idle(self) -> None:
        async with self._lock:
            if asyncio.get_running_loop().time() - self._used >= self._idle_seconds - 0.01:
                await self._session.end()
