"""One BMC over IPMI: the owner of its session, and the rules for what may be sent again.

One session per BMC and one command at a time, whoever asks; a session that nobody uses is closed, since many BMCs
have only three or four (openbmc#1241).

Reads and converging commands are sent again when no answer comes, and once more in a new session, because a BMC that
restarted drops the old session's packets in silence. An *act* (`Command.act`) is sent once: without an answer it ends
as OUTCOME_UNKNOWN, and whoever sent it decides by looking.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from drivers.breaker import Breaker
from drivers.driver import Call, Environment
from drivers.ipmi import commands
from drivers.ipmi.commands import BUSY_CODES, Command
from drivers.ipmi.handshake import SUITE_3, Privilege
from drivers.ipmi.ladder import Attempt
from drivers.ipmi.login import Credentials, WrongPassword, log_in
from drivers.ipmi.packets import Message
from drivers.ipmi.session import Session, SolPayload
from drivers.ipmi.transport import Datagrams, within
from drivers.target import Target
from protocol.errors import ErrorCode, OperationError

__all__ = ["IpmiConnection"]

_log = logging.getLogger("drivers.ipmi")

_TRIES: Final = (1.0, 2.0)
"""Seconds that a sending waits inside a session, before the session is taken for lost."""
_ACT_SECONDS: Final = 10.0
"""How long an act's only answer is waited for: some BMCs carry it out first."""
_PROOF_AFTER: Final = 2.0
"""An act in a session that was silent for so many seconds is preceded by a read, which proves it alive."""
_CLOSE_TRIES: Final = (0.5, 0.5)
_BUSY_PAUSES: Final = (0.2, 0.5, 1.0, 2.0)


class IpmiConnection:
    """A BMC as one credential sees it. Made without I/O; logs in at the first command.

    `idle_seconds`: an unused session is closed after so long. `facts` keeps what the concerns learn of the BMC and
    need again (its device id, its sensor records); it is forgotten with the connection.
    """

    def __init__(self, target: Target, environment: Environment, idle_seconds: float = 30.0) -> None:
        address = target.parsed
        self.endpoint = target.endpoint
        self.facts: dict[str, object] = {}
        self.idle_seconds = idle_seconds
        self.target = target
        self.environment = environment
        self.on_sol: Callable[[bytes], None] = _nobody_listens
        """Called with each Serial over LAN payload that comes in the session."""
        self._breaker: Breaker = environment.breaker
        self._host, self._port = address.host, address.port or 623
        self._lock = asyncio.Lock()
        self._datagrams: Datagrams | None = None
        self._session: Session | None = None
        self._proven: Attempt | None = None
        self._used_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_logout: asyncio.Task[None] | None = None
        self._downgrade_told = False
        self._closed = False

    @property
    def privilege(self) -> Privilege | None:
        """What the present session may do; None while there is none."""
        return self._session.privilege if self._session is not None else None

    async def run(self, command: Command, call: Call) -> bytes:
        """The data of a command's answer. Raises OperationError, a completion code other than zero included."""
        answer = await self.ask(command, call)
        if answer.completion_code:
            raise commands.refusal(command, answer, self.endpoint)
        return answer.data

    async def ask(self, command: Command, call: Call) -> Message:
        """A command's answer whatever its completion code; codes that mean "busy" are waited out within the deadline.

        Raises OperationError: UNREACHABLE, AUTH_FAILED, AUTH_BLOCKED, BUSY (no session free), TIMEOUT, and for an act
        OUTCOME_UNKNOWN. Unless it is OUTCOME_UNKNOWN, an act was not carried out.
        """
        pauses = iter(_BUSY_PAUSES)
        while True:
            async with self._lock:
                call.check(f"waiting for {self.endpoint}")
                answer = await self._act(command, call) if command.act else await self._read(command, call)
                self._used()
            if command.act or answer.completion_code not in BUSY_CODES:
                return answer
            pause = next(pauses, _BUSY_PAUSES[-1])
            if call.remaining <= pause:
                return answer
            await asyncio.sleep(pause)
            if call.remaining <= 0:
                return answer

    async def prove_login(self, call: Call) -> None:
        """Logs in. Raises OperationError; a refused password is known to the breaker then."""
        async with self._lock:
            await self._ensure_session(call)

    async def aclose(self) -> None:
        """Closes the session at the BMC. Never raises; safe to call twice."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        async with self._lock:
            await self._close_session()

    def forget_session(self) -> None:
        """Drops the session without a word to the BMC: for one that has restarted."""
        self._session = None
        if self._datagrams is not None:
            self._datagrams.close()
            self._datagrams = None

    def _leave_session(self) -> None:
        """Drops the session, and tells the BMC so once without waiting for its word."""
        session, datagrams = self._session, self._datagrams
        if session is not None and datagrams is not None:
            close = commands.CLOSE_SESSION
            number = session.begin(close.netfn, close.number)
            request = session.request(close.netfn, 0, number, close.number, session.bmc_id.to_bytes(4, "little"))
            with contextlib.suppress(OSError):
                datagrams.send(request)
        self.forget_session()

    async def answers_in_present_session(self) -> bool:
        """Whether the BMC still knows the session; False where there is none. Used to see a BMC restart."""
        return await self.ask_in_present_session(commands.GET_DEVICE_ID) is not None

    async def ask_in_present_session(self, command: Command) -> Message | None:
        """The answer within two seconds, without ever a new login; None where none came, or there is no session."""
        async with self._lock:
            if self._session is None:
                return None
            try:
                return await self._exchange(command, (1.0, 1.0))
            except (TimeoutError, OSError):
                return None

    @property
    def session_ids(self) -> tuple[int, int] | None:
        """The present session's id at the BMC and at this side; None while there is none."""
        return None if self._session is None else (self._session.bmc_id, self._session.console_id)

    def send_sol(self, payload: bytes) -> None:
        """Sends a Serial over LAN payload in the present session. Raises OSError where there is none."""
        if self._session is None or self._datagrams is None:
            raise ConnectionError("there is no session")
        self._datagrams.send(self._session.sol(payload))

    async def _read(self, command: Command, call: Call) -> Message:
        """Sends until it is answered; in a session that was there before, a lost session costs one new login."""
        fresh = await self._ensure_session(call)
        while True:
            try:
                return await self._exchange(command, within(_TRIES, call.remaining))
            except TimeoutError:
                self._leave_session()
                if fresh or call.remaining <= 0:
                    seconds = sum(_TRIES)
                    raise OperationError(
                        ErrorCode.UNREACHABLE,
                        f"{self.endpoint} gave no answer to {command.name} in {seconds:g} s, though its login went "
                        "well; the BMC may be restarting or overloaded",
                        details={"command": command.name},
                    ) from None
            except OSError as error:
                self.forget_session()
                raise self._refused_port(error) from error
            fresh = await self._ensure_session(call)

    async def _act(self, command: Command, call: Call) -> Message:
        """Sends once, in a session that is known to be alive."""
        await self._ensure_session(call)
        assert self._datagrams is not None
        if asyncio.get_running_loop().time() - self._datagrams.heard_at > _PROOF_AFTER:
            await self._read(commands.GET_DEVICE_ID, call)
        call.check(f"about to send {command.name} to {self.endpoint}; it was not sent")
        seconds = min(_ACT_SECONDS, max(1.0, call.remaining))
        try:
            return await self._exchange(command, (seconds,))
        except TimeoutError:
            raise commands.unanswered(command, self.endpoint, f"none came in {seconds:.1f} s") from None
        except OSError as error:
            self.forget_session()
            raise commands.unanswered(command, self.endpoint, error.strerror or str(error)) from error

    def _hear(self, datagram: bytes) -> None:
        """What comes between commands: console output, and answers that are too late."""
        if self._session is not None and isinstance(heard := self._session.receive(datagram), SolPayload):
            self.on_sol(heard.data)

    async def _exchange(self, command: Command, seconds: Sequence[float]) -> Message:
        session, datagrams = self._session, self._datagrams
        assert session is not None
        assert datagrams is not None
        netfn, lun, number, data = command.netfn, command.lun, command.number, command.data
        rq_seq = session.begin(netfn, number)

        def datagram() -> bytes:
            return session.request(netfn, lun, rq_seq, number, data)

        def match(received: bytes) -> Message | None:
            heard = session.receive(received)
            if isinstance(heard, SolPayload):
                self.on_sol(heard.data)
                return None
            return heard

        try:
            return await datagrams.exchange(datagram, match, seconds)
        finally:
            session.give_up()

    async def _ensure_session(self, call: Call) -> bool:
        """Logs in where there is no session; True where it did."""
        if self._closed:
            raise OperationError(ErrorCode.CANCELLED, f"the connection to {self.endpoint} was closed meanwhile")
        if self._session is not None:
            return False
        self._breaker.check(self.target)
        credentials = Credentials.of(self.target.username, self.target.secret.reveal())
        datagrams = await Datagrams.open(self._host, self._port)
        try:
            logged_in = await log_in(datagrams, self.endpoint, credentials, call, self._proven)
            self._datagrams, self._session, self._proven = datagrams, logged_in.session, logged_in.attempt
            datagrams.on_other = self._hear
        except WrongPassword as reason:
            self._breaker.refused(self.target, str(reason))
            raise OperationError(
                ErrorCode.AUTH_FAILED,
                f"{self.endpoint} has another password for user {self.target.username!r} ({reason}); no further "
                "login is tried until the credential changes",
            ) from None
        except OperationError as error:
            if error.code is ErrorCode.AUTH_FAILED and error.details.get("status") in _JUDGED:
                self._breaker.refused(self.target, error.message)
            raise
        except OSError as error:
            raise self._refused_port(error) from error
        finally:
            if self._datagrams is not datagrams:
                datagrams.close()
        self._breaker.accepted(self.target)
        try:
            await self._raise_privilege(logged_in.attempt.privilege, call)
        except BaseException:
            # Half a login must not serve the next caller, nor keep one of the BMC's few sessions.
            self._leave_session()
            raise
        self._tell_downgrade(logged_in.attempt)
        return True

    async def _raise_privilege(self, wanted: Privilege, call: Call) -> None:
        """ADMINISTRATOR, else OPERATOR; a user with less stays at USER, which is enough to read (ipmitool#376)."""
        assert self._session is not None
        for level in (Privilege.ADMINISTRATOR, Privilege.OPERATOR):
            if level > wanted:
                continue
            command = commands.SET_SESSION_PRIVILEGE.with_data(bytes((level,)))
            try:
                answer = await self._exchange(command, within(_TRIES, call.remaining))
            except TimeoutError:
                raise OperationError(
                    ErrorCode.UNREACHABLE,
                    f"{self.endpoint} let the user in and then gave no answer to {command.name}",
                    details={"phase": command.name},
                ) from None
            except OSError as error:
                raise self._refused_port(error) from error
            if not answer.completion_code:
                self._session.privilege = level
                return
            text = commands.completion_text(command, answer.completion_code)
            _log.info("%s refused the %s privilege: %s", self.endpoint, level.name, text)

    def _tell_downgrade(self, attempt: Attempt) -> None:
        assert self._session is not None
        if self._downgrade_told:
            return
        self._downgrade_told = True
        if attempt.suite is SUITE_3:
            _log.warning("%s takes no cipher suite 17; suite 3 (SHA-1) is used", self.endpoint)
        if self._session.privilege < Privilege.ADMINISTRATOR:
            _log.warning(
                "%s gives this user the %s privilege, not ADMINISTRATOR", self.endpoint, self._session.privilege.name
            )

    def _refused_port(self, error: OSError) -> OperationError:
        cause = error.strerror or str(error)
        return OperationError(
            ErrorCode.UNREACHABLE,
            f"{self.endpoint}/udp cannot be reached: {cause}; is IPMI over LAN switched on at this address?",
            details={"cause": cause},
        )

    def _used(self) -> None:
        """Puts the idle logout off."""
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        if self._idle_timer is None and self._session is not None and not self._closed:
            self._idle_timer = loop.call_later(self.idle_seconds, self._look_idle)

    def _look_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = None
        left = self._used_at + self.idle_seconds - loop.time()
        if self._session is None or self._closed:
            return
        if left > 0 or self._lock.locked():
            self._idle_timer = loop.call_later(max(left, 0.1), self._look_idle)
            return
        self._idle_logout = loop.create_task(self._log_out_idle())

    async def _log_out_idle(self) -> None:
        async with self._lock:
            await self._close_session()

    async def _close_session(self) -> None:
        if self._session is None:
            return
        try:
            data = self._session.bmc_id.to_bytes(4, "little")
            await self._exchange(commands.CLOSE_SESSION.with_data(data), _CLOSE_TRIES)
        except (TimeoutError, OSError) as error:
            _log.debug("%s did not confirm the end of the session: %r", self.endpoint, error)
        finally:
            self.forget_session()


def _nobody_listens(_payload: bytes) -> None:
    """A session without a console."""


_JUDGED: Final = frozenset({0x0D, 0x0F})
"""RAKP statuses after which the same user and password must not be tried again."""
