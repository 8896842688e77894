"""How an exchange with a BMC can fail, told apart by what is known about the request.

NotSent    it never left: nothing was changed, trying again is safe
NoAnswer   it may have left, and no answer came: look at the machine before anything else
Refused    the BMC answered, and the answer is no
"""

from drivers.redfish import messages
from drivers.redfish.answer import Answer
from drivers.redfish.messages import Note
from protocol.errors import ErrorCode, OperationError

__all__ = ["NoAnswer", "NotSent", "Refused", "is_login_fault", "is_passing"]


class NotSent(OperationError):
    """The request never left."""


class NoAnswer(OperationError):
    """The request may have been carried out; nothing says whether."""

    dropped = False
    """The connection ended (rather than the time)."""


class Refused(OperationError):
    """The BMC said no. `wait`: seconds that it asked to be left alone."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        status: int,
        notes: list[Note],
        wait: float | None = None,
        about: str = "",
    ) -> None:
        details: dict[str, object] = {"status": status}
        if about:
            details["request"] = about
        super().__init__(code, message, bmc=messages.bmc_messages(notes), details=details)
        self.status = status
        self.notes = notes
        self.wait = wait

    @property
    def absent(self) -> bool:
        """There is no such resource, or it takes no such method."""
        return self.status in (404, 405, 410, 501) and self.code is not ErrorCode.LICENSE_REQUIRED

    @property
    def transient(self) -> bool:
        """The same request may be taken later; this one was not carried out."""
        if self.code is ErrorCode.LICENSE_REQUIRED or messages.is_unsupported(self.notes):
            return False
        return self.status in (401, 409, 429, 503) or (
            self.status in (400, 500) and messages.is_transient(self.notes)
        )

    @property
    def certainly_not_done(self) -> bool:
        """Whether the BMC itself said no. A bare server error may come from one that did it."""
        return self.status < 500 or (self.status == 503 and (self.wait is not None or bool(self.notes)))

    def as_lost(self) -> NoAnswer:
        """The same as no answer at all, where it is not `certainly_not_done`: look at the machine before anything
        else."""
        lost = NoAnswer(ErrorCode.OUTCOME_UNKNOWN, self.message, bmc=self.bmc, details=self.details)
        lost.__cause__ = self
        return lost

    @classmethod
    def from_answer(cls, status: int, notes: list[Note], about: str, wait: float | None = None) -> "Refused":
        """The error for a status and its messages: its code says what the caller can do next."""
        code, reason = _reading(status, notes)
        return cls(code, f"{about}: {reason}", status=status, notes=notes, wait=wait, about=about)


def is_login_fault(answer: Answer) -> bool:
    """A 401, unless it is for want of a licence: no new login would help."""
    return answer.status == 401 and not _is_licence(401, messages.notes_of(answer.said()))


def is_passing(answer: Answer) -> bool:
    """A server error that says itself that it passes (Dell SYS518: its data sources are unavailable for half a
    minute)."""
    return answer.status == 500 and messages.is_transient(messages.notes_of(answer.said()))


def _is_licence(status: int, notes: list[Note]) -> bool:
    """Whether a refusal is for want of a licence. A missing resource is none, whatever its name."""
    return status in (400, 401, 402, 403, 405, 501) and messages.is_license(notes)


def _reading(status: int, notes: list[Note]) -> tuple[ErrorCode, str]:
    if messages.is_password_change(notes):
        return ErrorCode.AUTH_FAILED, "the BMC wants this account's password changed before it allows anything else"
    if _is_licence(status, notes):
        return ErrorCode.LICENSE_REQUIRED, "this BMC has no licence for it"
    if status == 401:
        return ErrorCode.AUTH_FAILED, "the BMC does not accept this login for it (HTTP 401)"
    if status == 403:
        return ErrorCode.AUTH_FAILED, "the BMC's user has no privilege for it (HTTP 403): give the user a higher role"
    if status in (404, 405, 410, 501) or messages.is_unsupported(notes):
        return ErrorCode.UNSUPPORTED, f"this BMC does not offer it (HTTP {status})"
    if status in (429, 503) or messages.is_session_limit(notes) or (status == 500 and messages.is_transient(notes)):
        return ErrorCode.BUSY, f"the BMC is busy (HTTP {status})"
    if status in (409, 412, 428) or (status == 400 and messages.is_transient(notes)):
        return ErrorCode.CONFLICT, f"the BMC refuses it in its present state (HTTP {status})"
    return ErrorCode.BMC_ERROR, f"the BMC refused it (HTTP {status})"
