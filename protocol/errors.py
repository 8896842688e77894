"""Every failure this product reports, as one tree, typed by what the caller can do next.

    RackwrightError
    ├── OperationError        an operation on a machine failed; `code` says why, `code.advice` what can help
    ├── RequestError          a request to the control plane was refused; `issues` lists every fault
    └── ProtocolError         a peer sent something that this version cannot take

An `OperationError` travels as a `Failure` (codes are text on the wire, so that a newer peer's code survives).
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

__all__ = [
    "Advice",
    "BmcMessage",
    "ErrorCode",
    "Failure",
    "Issue",
    "OperationError",
    "ProtocolError",
    "RackwrightError",
    "RequestCode",
    "RequestError",
    "unquoted",
]


class RackwrightError(Exception):
    """The root of the tree."""


class Advice(StrEnum):
    """What can help after a failure."""

    RETRY = "retry"
    """The same call may succeed later; nothing was changed by the failed one."""
    FIX = "fix"
    """It fails again until somebody changes a credential, a certificate, a licence or the request."""
    LOOK = "look"
    """It may have happened: read the machine's state before deciding."""
    NEVER = "never"
    """This machine or driver cannot do it."""


class ErrorCode(StrEnum):
    """Why an operation failed. The names are part of the interface."""

    UNREACHABLE = "UNREACHABLE"
    AUTH_FAILED = "AUTH_FAILED"
    AUTH_BLOCKED = "AUTH_BLOCKED"
    TLS_UNTRUSTED = "TLS_UNTRUSTED"
    UNSUPPORTED = "UNSUPPORTED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    LICENSE_REQUIRED = "LICENSE_REQUIRED"
    BUSY = "BUSY"
    CONFLICT = "CONFLICT"
    TIMEOUT = "TIMEOUT"
    NOT_APPLIED = "NOT_APPLIED"
    BMC_ERROR = "BMC_ERROR"
    INTERRUPTED = "INTERRUPTED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    CANCELLED = "CANCELLED"

    @property
    def advice(self) -> Advice:
        return _ADVICE[self]

    @property
    def retryable(self) -> bool:
        """Whether the same call, unchanged, can succeed later."""
        return self.advice is Advice.RETRY


_ADVICE = {
    ErrorCode.UNREACHABLE: Advice.RETRY,
    ErrorCode.AUTH_FAILED: Advice.FIX,
    ErrorCode.AUTH_BLOCKED: Advice.FIX,
    ErrorCode.TLS_UNTRUSTED: Advice.FIX,
    ErrorCode.UNSUPPORTED: Advice.NEVER,
    ErrorCode.INVALID_ARGUMENT: Advice.FIX,
    ErrorCode.LICENSE_REQUIRED: Advice.FIX,
    ErrorCode.BUSY: Advice.RETRY,
    ErrorCode.CONFLICT: Advice.RETRY,
    ErrorCode.TIMEOUT: Advice.LOOK,
    ErrorCode.NOT_APPLIED: Advice.LOOK,
    ErrorCode.BMC_ERROR: Advice.LOOK,
    ErrorCode.INTERRUPTED: Advice.RETRY,
    ErrorCode.OUTCOME_UNKNOWN: Advice.LOOK,
    ErrorCode.CANCELLED: Advice.LOOK,
}


class BmcMessage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the BMC itself said: a Redfish message id, or an IPMI completion code, and its text."""

    id: str
    text: str
    resolution: str = ""
    """What the BMC advises (Redfish `Resolution`); empty where it advises nothing."""

    def __str__(self) -> str:
        return f"{self.id}: {self.text}" if self.id else self.text


def unquoted(message: str, said: Iterable[BmcMessage]) -> list[BmcMessage]:
    """What the BMC said and `message` does not quote, each text once: nobody wants to read it twice."""
    left: dict[str, BmcMessage] = {}
    for each in said:
        words = (each.text or each.id).strip().rstrip(".")
        if words not in message:
            left.setdefault(words, each)
    return list(left.values())


class Failure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An operation's failure as it travels and is stored."""

    code: str
    message: str
    retryable: bool = False
    bmc: list[BmcMessage] = []
    details: dict[str, object] = {}


class OperationError(RackwrightError):
    """An operation on a machine failed.

    `message` is one sentence for an operator, with what to do next where that is known. `bmc` keeps the BMC's
    own words. `details` holds plain JSON values only, never a secret.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        bmc: Iterable[BmcMessage] = (),
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.bmc = list(bmc)
        self.details = details or {}

    def __str__(self) -> str:
        own_words = "; ".join(map(str, unquoted(self.message, self.bmc)))
        return f"{self.code}: {self.message}" + (f" (the BMC said: {own_words})" if own_words else "")

    def as_failure(self) -> Failure:
        return Failure(self.code.value, self.message, self.code.retryable, self.bmc, self.details)

    @classmethod
    def from_failure(cls, failure: Failure) -> "OperationError":
        """The error again on this side. A code unknown to this version becomes BMC_ERROR and keeps its name."""
        try:
            code = ErrorCode(failure.code)
        except ValueError:
            return cls(
                ErrorCode.BMC_ERROR,
                f"{failure.code}: {failure.message}",
                bmc=failure.bmc,
                details={**failure.details, "unknownCode": failure.code},
            )
        return cls(code, failure.message, bmc=failure.bmc, details=failure.details)


class Issue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault of an input: where (`steps[2].timeout`), what, and how to mend it."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class RequestCode(StrEnum):
    """Why the control plane refused a request. The names are part of the interface."""

    NOT_FOUND = "NOT_FOUND"
    CONFLICT = "CONFLICT"
    INVALID_INPUT = "INVALID_INPUT"
    INVALID_STATE = "INVALID_STATE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    UNAVAILABLE = "UNAVAILABLE"
    TOO_LARGE = "TOO_LARGE"
    INTERNAL = "INTERNAL"


class RequestError(RackwrightError):
    """The control plane refused a request; nothing was changed."""

    def __init__(self, code: RequestCode, message: str, issues: Iterable[Issue] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.issues = list(issues)

    def __str__(self) -> str:
        listed = "".join(f"\n  - {issue}" for issue in self.issues)
        return f"{self.code}: {self.message}{listed}"

    @classmethod
    def invalid(cls, issues: Iterable[Issue], what: str = "the request") -> "RequestError":
        listed = list(issues)
        count = f"{len(listed)} fault" + ("" if len(listed) == 1 else "s")
        return cls(RequestCode.INVALID_INPUT, f"{what} has {count}", listed)


class ProtocolError(RackwrightError):
    """A peer sent what this version cannot take; the connection lives on unless `fatal`."""

    def __init__(self, message: str, *, about: str = "", fatal: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.about = about
        self.fatal = fatal
