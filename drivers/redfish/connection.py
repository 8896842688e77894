"""One BMC as one credential sees it: one request under way at a time, one session, what was learnt of the service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from drivers.concealment import conceal
from drivers.driver import Call, Environment
from drivers.redfish import etag, messages, waiting
from drivers.redfish.answer import Answer
from drivers.redfish.document import Document, link, number, path_of, same_path
from drivers.redfish.failures import NoAnswer, NotSent, Refused, is_login_fault, is_passing
from drivers.redfish.idleness import Idleness
from drivers.redfish.licences import MissingLicences
from drivers.redfish.patching import patch
from drivers.redfish.service import Service
from drivers.redfish.session import ROOT, SESSION_SERVICE, LoginKind, Session, redirected
from drivers.redfish.streams import Streams
from drivers.redfish.transport import Transport
from drivers.redfish.upload import Upload
from drivers.target import Target
from protocol.addresses import TlsMode
from protocol.errors import ErrorCode, OperationError

__all__ = ["RedfishConnection"]

_EXCHANGE_SECONDS = 60.0
_READ_PATIENCE = 60.0
_PATIENCE = 20.0
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS = 10.0
"""Of an operation's time, what is kept back from a change so that its effect can still be looked at."""


class RedfishConnection:
    """The one owner of a BMC's session. Made without I/O; logs in when first used, and out when idle or closed."""

    def __init__(self, target: Target, environment: Environment) -> None:
        self.target = target
        self.files = environment.files
        self.images = environment.images
        self.endpoint = target.endpoint
        self.environment = environment
        self._transport = Transport(target, self.endpoint, environment.pins)
        self._session = Session(self._transport, target, environment.breaker)
        self.service = Service(self)
        self._lock = asyncio.Lock()
        self._idleness = Idleness(self._log_out_when_idle)
        self._licences = MissingLicences()
        self.streams = Streams(self, self._transport, self._idleness)
        self._root_refused = False
        self._closings = 0

    async def get(self, path: str, call: Call, *, patience: float = _READ_PATIENCE) -> Document:
        """The resource. Raises Refused where the BMC says no, OperationError for everything else.

        `patience`: seconds for which a BMC that is busy is asked again.
        """
        return self.document_of(await self.read(path, call, patience=patience))

    def document_of(self, answer: Answer) -> Document:
        """The resource in an answer, with its entity tag as `@odata.etag` where the answer has one.

        Raises Refused for an error that was sent as a success (Intel, HPE Cray).
        """
        document = answer.document()
        if "error" in document and "@odata.id" not in document:
            raise self.refused(answer)
        tag = etag.as_sent(answer.headers.getall("ETag", ()), document)
        if tag is not None:
            document["@odata.etag"] = tag
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
        self.check_licence("GET", path)
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
                call.heard.weigh(len(answer.body), f"GET {answer.path}: {self.endpoint}")
                if logged_in_again:
                    await self._learn_session_timeout(call)
                return answer
            if is_login_fault(answer) and not logged_in_again:
                self.rejected(answer)
                logged_in_again = True
            elif status == 406 and not encoded:
                # HPE serves its registries compressed only.
                encoded = True
            elif status in (301, 302, 307, 308) and not moved:
                path = self._moved(path, answer)
                moved = True
            elif (status in (429, 503) or is_passing(answer)) and waited < patience:
                seconds = max(0.05, waiting.pause(attempt, waiting.retry_after(answer.headers.get("Retry-After"))))
                attempt += 1
                if waited + seconds > patience or seconds >= call.remaining:
                    raise self.refused(answer)
                waited += seconds
                await call.sleep(seconds, f"{self.endpoint} was busy")
            else:
                raise self.refused(answer)

    async def act(
        self, method: str, path: str, body: Document | None, call: Call, *, if_match: str | None = None
    ) -> Answer:
        """Sends a change exactly once. Raises Refused (not done), NoAnswer (look!), NotSent (not done).

        A session that had ended is a Refused with status 401; the next request logs in again.
        """
        self.check_licence(method, path)
        content = None if body is None else msgspec.json.encode(body)
        answer = await self._exchange(method, path, call, body=content, if_match=if_match)
        if answer.ok:
            return answer
        if is_login_fault(answer):
            self.rejected(answer)
        error = self.refused(answer)
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

    async def patch(self, path: str, body: Document, call: Call, *, known: Document | None = None) -> Answer:
        """A PATCH by the entity-tag rules (`drivers.redfish.patching`).

        `known`: the resource as this operation has just read it: its tag need not be asked for again.
        """
        return await patch(self, path, body, call, known)

    async def upload(self, path: str, upload: Upload, call: Call) -> Answer:
        """Sends a body while it is read, exactly once, with the connection to itself. The caller reads something
        shortly before, so that the session lives.

        Raises Refused (not done), NoAnswer (all of it was sent: look!), NotSent and what ended the reading (a part of
        it never left, so nothing was done).
        """
        self.check_licence("POST", path)
        async with self.logged_in(call) as headers:
            remaining = max(call.remaining - _LOOK_SECONDS, call.remaining / 2)
            answer = await self._transport.send(path, headers, remaining, upload)
        if answer.ok:
            return answer
        if is_login_fault(answer):
            self.rejected(answer)
        raise self.refused(answer)

    async def session_key(self, call: Call) -> str | None:
        """The session's token, for a vendor's form that wants it in the body; None where the login has none."""
        async with self.logged_in(call) as headers:
            return headers.get("X-Auth-Token")

    async def prove_login(self, call: Call) -> None:
        """Logs in. Raises OperationError; a refused login is known to the breaker then.

        Under HTTP Basic a login is only tried with a request; its answer may be anything but 401.
        """
        async with self.logged_in(call) as headers:
            if self._session.kind is LoginKind.BASIC:
                answer = await self._transport.exchange(
                    "GET", SESSION_SERVICE, headers, min(_EXCHANGE_SECONDS, call.remaining)
                )
                if answer.status == 401:
                    self.rejected(answer)

    async def take_certificate(self, fingerprint: str, call: Call) -> None:
        """From here on the BMC is known by this certificate (SHA-256, hex), which was seen in a handshake; a request
        on a new network connection must go through with it. Raises TLS_UNTRUSTED where other rules than a pin refuse
        it."""
        before = self._transport.repin(fingerprint)
        if self.target.tls.mode in (TlsMode.PIN, TlsMode.FIRST_USE):
            call.observed["tlsFingerprint"] = fingerprint
            if before is not None:
                call.observed["tlsFingerprintReplaced"] = before
        await self._exchange("GET", ROOT, call, fresh=True)

    async def aclose(self) -> None:
        """Ends the session at the BMC. Never raises; safe to call twice."""
        self._closings += 1
        self._idleness.close()
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
            async with self.logged_in(call):
                # The login reads it.
                pass
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
        async with self.logged_in(call) as login:
            headers = login
            if body is not None or if_match is not None or encoded:
                headers = dict(login)
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

    async def _login(self, call: Call) -> dict[str, str]:
        """The headers of this user's requests. A login that had no answer says nothing of the request after it."""
        try:
            return await self._session.headers(call)
        except NoAnswer as failure:
            raise NotSent(failure.code, failure.message) from failure

    @contextlib.asynccontextmanager
    async def logged_in(self, call: Call) -> AsyncIterator[dict[str, str]]:
        """The BMC to oneself, with the headers of this user's requests. What fails inside carries no secret."""
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
            yield await self._login(call)
        except OperationError as error:
            self.hide_secret(error)
            raise
        finally:
            self.note_use(call)
            self._lock.release()

    def rejected(self, answer: Answer) -> None:
        """A request was answered 401: the next one logs in again. Raises the error where that cannot help."""
        error = self._session.rejected(answer)
        if error is not None:
            self.hide_secret(error)
            raise error

    def refused(self, answer: Answer) -> OperationError:
        """The error for an answer that is no success; the BMC's own words are in it, and no secret."""
        if 300 <= answer.status < 400:
            error = redirected(self.endpoint, answer.path, answer.headers.get("Location"))
            self.hide_secret(error)
            return error
        notes = messages.notes_of(answer.said())
        wait = waiting.retry_after(answer.headers.get("Retry-After"))
        refused = Refused.from_answer(answer.status, notes, f"{answer.method} {answer.path}", wait)
        self.hide_secret(refused)
        if refused.code is ErrorCode.LICENSE_REQUIRED:
            self._licences.note(answer.method, answer.path, refused)
        return refused

    def check_licence(self, method: str, path: str) -> None:
        """Raises the refusal that a request met a while ago for want of a licence."""
        refused = self._licences.refusal_of(method, path)
        if refused is not None:
            self.hide_secret(refused)
            raise refused

    def _moved(self, path: str, answer: Answer) -> str:
        """The other spelling of the same path that a BMC leads to; anything else is refused."""
        location = answer.headers.get("Location") or ""
        own = location.startswith(("/", f"{self.target.parsed}/"))
        if own and path_of(location) != path and same_path(path_of(location), path):
            return path_of(location)
        raise self.refused(answer)

    def hide_secret(self, error: OperationError) -> None:
        """A BMC may repeat what it was sent; the password must not travel on in its words."""
        conceal(error, *self._session.secrets)

    async def _learn_session_timeout(self, call: Call) -> None:
        """A session ended unasked: from now on this connection logs out before the BMC does it."""
        if self._idleness.knows_timeout:
            return
        with contextlib.suppress(OperationError):
            answer = await self._exchange("GET", link(self._session.root, "SessionService") or SESSION_SERVICE, call)
            seconds = number(answer.document(), "SessionTimeout") if answer.ok else None
            if seconds is not None and seconds > 0:
                self._idleness.end_before(seconds)

    def note_use(self, call: Call) -> None:
        """The connection was used just now, and this is the certificate that it was used with."""
        pin = self._transport.first_use_pin
        if pin is not None:
            call.observed["tlsFingerprint"] = pin
        self._idleness.note_use(logged_in=self._session.kind is not LoginKind.NONE)

    async def _log_out_when_idle(self) -> None:
        async with self._lock:
            if self._idleness.is_over:
                await self._session.end()
