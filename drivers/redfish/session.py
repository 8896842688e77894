"""The login at a BMC: one session however many callers, one attempt per credential, ended when nobody needs it.

A session is asked for first (DSP0266, "Redfish session login authentication"); HTTP Basic serves where a BMC has no
sessions, and never because a login was refused.
"""

import asyncio
import base64
import contextlib
import re
from enum import Enum, auto

import msgspec

from drivers.breaker import Breaker
from drivers.driver import Call
from drivers.redfish import messages, waiting
from drivers.redfish.answer import Answer
from drivers.redfish.document import Document, link, path_of, text
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.transport import Transport
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError

__all__ = ["ROOT", "SESSION_SERVICE", "LoginKind", "Session"]

ROOT = "/redfish/v1/"
SESSION_SERVICE = "/redfish/v1/SessionService"
_SESSIONS = "/redfish/v1/SessionService/Sessions"
_EXCHANGE_SECONDS = 60.0
_LOGOUT_SECONDS = 5.0
_LOGIN_ENDS_SECONDS = 10.0
"""How long the end waits for a login under way, whose session could not be ended otherwise."""
_LOGIN_PART = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*:)?//[^/]*@")
_ASKED = {"OData-Version": "4.0", "Accept": "application/json", "Accept-Encoding": "identity"}


class LoginKind(Enum):
    NONE = auto()
    ANONYMOUS = auto()
    BASIC = auto()
    TOKEN = auto()


class Session:
    """The login state of one connection. Its caller sees to it that one method runs at a time."""

    def __init__(self, transport: Transport, target: Target, breaker: Breaker) -> None:
        self._transport = transport
        self._target = target
        self._breaker = breaker
        self.kind = LoginKind.NONE
        self.root: Document = {}
        """The service root as it was read without a login; empty where the BMC wants one for it."""
        self.logins = 0
        self._headers: dict[str, str] = {}
        self._login: asyncio.Task[None] | None = None
        self._path: str | None = None
        self._left_behind: str | None = None

    async def headers(self, call: Call) -> dict[str, str]:
        """The headers of a request by this user; logs in where that is needed.

        Raises OperationError: AUTH_BLOCKED, AUTH_FAILED, BUSY, UNREACHABLE and what the transport meets.
        """
        if self.kind is LoginKind.NONE:
            if self._login is None:
                return await self._own_login(call)
            try:
                await asyncio.shield(self._login)
            except OperationError as error:
                # That login was under way for a caller with less time than this one.
                if error.code not in (ErrorCode.TIMEOUT, ErrorCode.BUSY):
                    raise
                return await self._own_login(call)
        return self._headers

    async def _own_login(self, call: Call) -> dict[str, str]:
        """A caller that is cancelled leaves the login to its end: its session must be known to be ended."""
        self._login = asyncio.get_running_loop().create_task(self._log_in(call))
        self._login.add_done_callback(self._login_ended)
        await asyncio.shield(self._login)
        return self._headers

    def _login_ended(self, login: asyncio.Task[None]) -> None:
        """Also where nobody waits for it any more: the next request must not take it for its own."""
        if self._login is login:
            self._login = None
        if not login.cancelled():
            login.exception()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no error may repeat: the password, and the token or the header that stands for it."""
        shown = (self._headers.get("X-Auth-Token"), self._headers.get("Authorization"))
        return (self._target.secret.reveal(), *(word.removeprefix("Basic ") for word in shown if word))

    def rejected(self, answer: Answer) -> OperationError | None:
        """A request was answered 401. None when a new login may help; else the error that ends it.

        Under HTTP Basic every request is a login, so that its 401 is a refused login.
        """
        if self.kind is LoginKind.TOKEN:
            self._left_behind, self._path, self.kind = self._path, None, LoginKind.NONE
            return None
        if self.kind is LoginKind.BASIC:
            self.kind = LoginKind.NONE
            return self._refused(answer)
        return OperationError(
            ErrorCode.AUTH_FAILED,
            f"{self._transport.endpoint} wants a login: give the BMC's user and password",
            bmc=messages.bmc_messages(messages.notes_of(answer.said())),
        )

    async def end(self) -> None:
        """Ends the session at the BMC. Where that fails, the BMC ends it by its own timeout."""
        login, self._login = self._login, None
        if login is not None:
            await asyncio.wait({login}, timeout=_LOGIN_ENDS_SECONDS)
            login.cancel()
        path, headers, kind = self._path, self._headers, self.kind
        self._path, self._headers, self.kind = None, {}, LoginKind.NONE
        if kind is LoginKind.TOKEN and path is not None:
            with contextlib.suppress(OperationError):
                await self._transport.exchange("DELETE", path, headers, _LOGOUT_SECONDS)

    async def _log_in(self, call: Call) -> None:
        if self._target.username is None:
            self._headers, self.kind = dict(_ASKED), LoginKind.ANONYMOUS
            return
        self._breaker.check(self._target)
        if not self.root:
            self.root = await self._read_root(call)
        answer = await self._ask_for_session(await self._sessions_path(call), call)
        if answer.status in (404, 405, 410, 501) or self._has_no_sessions(answer):
            self._headers, self.kind = {**_ASKED, "Authorization": self._basic()}, LoginKind.BASIC
            return
        token = answer.headers.get("X-Auth-Token")
        if not answer.ok or not token:
            raise self._refused(answer)
        self._breaker.accepted(self._target)
        self._headers, self.kind = {**_ASKED, "X-Auth-Token": token}, LoginKind.TOKEN
        self._path = _session_path(answer)
        self.logins += 1
        await self._end_left_behind()

    def _has_no_sessions(self, refusal: Answer) -> bool:
        """Whether a 401 says only that HTTP Basic is wanted for any path, be it one that is not there: the root names
        no sessions (OpenStack's sushy-tools with a file of logins). Where it names them, a 401 is a refused login."""
        named = link(self.root, "Links", "Sessions") or link(self.root, "SessionService")
        asked = ", ".join(refusal.headers.getall("WWW-Authenticate", ())).lower()
        return refusal.status == 401 and bool(self.root) and named is None and "basic" in asked

    async def _read_root(self, call: Call) -> Document:
        """The service root, asked without a login as DSP0266 allows; empty where the BMC refuses that."""
        path = ROOT
        for attempt in range(20):
            answer = await self._exchange("GET", path, _ASKED, call)
            if answer.ok:
                return answer.document()
            if answer.status in (401, 403):
                return {}
            slashless = answer.status in (301, 302, 307, 308) and path == ROOT
            if slashless and path_of(answer.headers.get("Location", "")) == ROOT.rstrip("/"):
                path = ROOT.rstrip("/")
            elif answer.status in (429, 502, 503, 504):
                await self._wait(attempt, answer, call)
            else:
                raise not_a_service(self._transport.endpoint, answer)
        raise not_a_service(self._transport.endpoint, answer)

    async def _sessions_path(self, call: Call) -> str:
        listed = link(self.root, "Links", "Sessions")
        if listed is None and link(self.root, "SessionService") is not None:
            path = link(self.root, "SessionService") or SESSION_SERVICE
            answer = await self._exchange("GET", path, _ASKED, call)
            if answer.ok:
                with contextlib.suppress(OperationError):
                    listed = link(answer.document(), "Sessions")
        return listed or _SESSIONS

    async def _ask_for_session(self, path: str, call: Call) -> Answer:
        """The BMC's answer to one login; asked again only where it was too busy to look at the password."""
        body = msgspec.json.encode({"UserName": self._target.username, "Password": self._target.secret.reveal()})
        headers = {**_ASKED, "Content-Type": "application/json"}
        for attempt in range(50):
            try:
                answer = await self._exchange("POST", path, headers, call, body)
            except NoAnswer as failure:
                raise OperationError(
                    ErrorCode.UNREACHABLE, f"the login at {self._transport.endpoint} had no answer: {failure.message}"
                ) from failure
            notes = messages.notes_of(answer.said()) if not answer.ok else []
            if answer.status not in (429, 502, 503, 504) and not messages.is_session_limit(notes):
                return answer
            await self._wait(attempt, answer, call)
        return answer

    async def _wait(self, attempt: int, answer: Answer, call: Call) -> None:
        """Waits as long as a busy BMC asks for; raises BUSY where the operation's time does not allow it."""
        seconds = waiting.pause(attempt, waiting.retry_after(answer.headers.get("Retry-After")))
        if seconds >= call.remaining:
            notes = messages.notes_of(answer.said())
            full = answer.method == "POST"
            raise OperationError(
                ErrorCode.BUSY,
                f"{self._transport.endpoint} is busy (HTTP {answer.status})"
                + (": it takes no new session; end sessions that others have left open" if full else ""),
                bmc=messages.bmc_messages(notes),
            )
        await call.sleep(max(seconds, 0.05), f"{self._transport.endpoint} was busy")

    def _refused(self, answer: Answer) -> OperationError:
        """Classifies a login that was not taken; a refused password blocks the credential."""
        endpoint = self._transport.endpoint
        if 300 <= answer.status < 400:
            return redirected(endpoint, answer.path, answer.headers.get("Location"))
        notes = messages.notes_of(answer.said())
        about = f"login at {endpoint}"
        wrong = (
            answer.ok
            or answer.status == 401
            or (answer.status == 403 and not messages.is_license(notes))
            or messages.is_login_refused(notes)
        )
        if messages.is_password_change(notes) or not wrong:
            return Refused.from_answer(answer.status, notes, about)
        self._breaker.refused(self._target, f"HTTP {answer.status} at login")
        return OperationError(
            ErrorCode.AUTH_FAILED,
            f"{endpoint} refused the user and password; no other login is tried until the credential changes",
            bmc=messages.bmc_messages(notes),
            details={"status": answer.status},
        )

    async def _end_left_behind(self) -> None:
        """The session that was rejected may live on at the BMC, where slots are few."""
        path, self._left_behind = self._left_behind, None
        if path is not None and path != self._path:
            with contextlib.suppress(OperationError):
                await self._transport.exchange("DELETE", path, self._headers, _LOGOUT_SECONDS)

    async def _exchange(
        self, method: str, path: str, headers: dict[str, str], call: Call, body: bytes | None = None
    ) -> Answer:
        return await self._transport.exchange(method, path, headers, min(_EXCHANGE_SECONDS, call.remaining), body)

    def _basic(self) -> str:
        pair = f"{self._target.username}:{self._target.secret.reveal()}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def not_a_service(endpoint: str, answer: Answer) -> OperationError:
    """Why an answer to the service root's address is none; says where a redirect leads."""
    where = answer.headers.get("Location")
    if 300 <= answer.status < 400:
        return redirected(endpoint, answer.path, where)
    if answer.status == 404:
        return OperationError(
            ErrorCode.BMC_ERROR,
            f"{endpoint} has no Redfish service at {ROOT} (HTTP 404): is it a BMC, with Redfish switched on?",
        )
    return Refused.from_answer(answer.status, messages.notes_of(answer.said()), f"GET {answer.path} at {endpoint}")


def redirected(endpoint: str, path: str, where: str | None) -> OperationError:
    """A BMC that sends its caller elsewhere is not followed: a password would go with it.

    Of the place only host and path are told: the rest may repeat what was sent.
    """
    where = _LOGIN_PART.sub(r"\1//", re.split(r"[?#]", where or "", maxsplit=1)[0])
    return OperationError(
        ErrorCode.BMC_ERROR,
        f"{endpoint} redirects {path} to {where or 'nowhere'}, which is not followed: "
        "give the address that it leads to, if that is the BMC",
        details={"location": where},
    )


def _session_path(answer: Answer) -> str | None:
    """Where the session can be ended: from `Location` (maybe absolute), else from the body."""
    location = answer.headers.get("Location")
    if location and location.strip():
        return path_of(location)
    try:
        document = answer.document()
    except OperationError:
        return None
    return path_of(document["@odata.id"]) if text(document, "@odata.id") else None
