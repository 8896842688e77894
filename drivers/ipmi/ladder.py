"""Which login to try next: cipher suite 17 then 3, ADMINISTRATOR then OPERATOR, and when to stop for good. Pure.

A wrong password is shown to a BMC once at most. The steps that may be tried again are those that a BMC answers before
it looks at a password: an Open Session that it refuses or does not answer, and a RAKP 1 that it refuses.
Sources: ipmitool#29, #199, #363, #376, bmclib#323, LP2085137, MAAS LP1889788, openbmc#1241; pyghmi never leaves suite
17 when it is dropped in silence.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from drivers.ipmi.handshake import STATUS_TEXTS, SUITE_3, SUITE_17, Privilege, Status, Suite
from protocol.errors import BmcMessage, ErrorCode, OperationError

__all__ = ["Attempt", "Ladder", "LoginRefused", "Phase", "Silence"]


class Phase(Enum):
    """The steps of a login, by their names in the specification."""

    CAPABILITIES = "Get Channel Authentication Capabilities"
    OPEN_SESSION = "Open Session"
    RAKP_1 = "RAKP 1"
    RAKP_3 = "RAKP 3"
    PRIVILEGE = "Set Session Privilege Level"


class LoginRefused(Exception):
    """The BMC refused a step with a status."""

    def __init__(self, phase: Phase, status: int) -> None:
        super().__init__(f"{phase.value}: status {status:#04x}")
        self.phase = phase
        self.status = status


class Silence(Exception):
    """No usable answer came to a step, however often it was sent."""

    def __init__(self, phase: Phase, seconds: float) -> None:
        super().__init__(f"{phase.value}: no answer in {seconds:.1f} s")
        self.phase = phase
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Attempt:
    suite: Suite
    privilege: Privilege


_OF_THE_SUITE: Final = frozenset(
    {
        Status.INVALID_AUTHENTICATION_ALGORITHM,
        Status.INVALID_INTEGRITY_ALGORITHM,
        Status.NO_MATCHING_AUTHENTICATION_PAYLOAD,
        Status.NO_MATCHING_INTEGRITY_PAYLOAD,
        Status.INVALID_CONFIDENTIALITY_ALGORITHM,
        Status.NO_CIPHER_SUITE_MATCH,
        Status.ILLEGAL_PARAMETER,
    }
)
_OF_THE_ROLE: Final = frozenset({Status.INVALID_ROLE, Status.UNAUTHORIZED_ROLE, Status.UNAUTHORIZED_NAME})
_OF_THE_CREDENTIAL: Final = frozenset({Status.UNAUTHORIZED_NAME, Status.INVALID_INTEGRITY_CHECK})
_OF_A_LOST_SESSION: Final = frozenset({Status.INVALID_SESSION_ID, Status.INACTIVE_SESSION_ID})
_OF_THE_MOMENT: Final = frozenset({Status.INSUFFICIENT_RESOURCES, Status.INSUFFICIENT_RESOURCES_FOR_ROLE})
_BACK_OFF: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between logins while the BMC has no session free: bounded, since each try costs it something too."""


class Ladder:
    """The decisions of one login. `present` is what to try; `pause` is how long to wait before it."""

    def __init__(self, endpoint: str, start: Attempt | None = None) -> None:
        self.present = start or Attempt(SUITE_17, Privilege.ADMINISTRATOR)
        self.pause = 0.0
        self._endpoint = endpoint
        self._crowded = 0
        self._restarted = False

    def refused(self, refusal: LoginRefused) -> None:
        """Goes to the next rung. Raises OperationError where there is none."""
        phase, status, now = refusal.phase, refusal.status, self.present
        self.pause = 0.0
        if status in _OF_THE_MOMENT and self._crowded < len(_BACK_OFF):
            self.pause = _BACK_OFF[self._crowded]
            self._crowded += 1
        elif status in _OF_THE_SUITE and now.suite is SUITE_17 and phase is not Phase.RAKP_3:
            self.present = Attempt(SUITE_3, now.privilege)
        elif status in _OF_THE_ROLE and now.privilege is Privilege.ADMINISTRATOR and phase is not Phase.RAKP_3:
            self.present = Attempt(now.suite, Privilege.OPERATOR)
        elif status in _OF_A_LOST_SESSION and not self._restarted:
            # An answer was lost and the BMC has closed the set-up meanwhile; no password was judged.
            self._restarted = True
        else:
            raise self._refusal_error(refusal)

    def silent(self, silence: Silence) -> None:
        """Goes to suite 3 where suite 17 may be what the BMC drops. Raises OperationError UNREACHABLE else."""
        if self.present.suite is SUITE_17 and silence.phase in (Phase.OPEN_SESSION, Phase.RAKP_1):
            self.present = Attempt(SUITE_3, self.present.privilege)
            self.pause = 0.0
            return
        if silence.phase is Phase.CAPABILITIES:
            text = f"{self._endpoint} does not answer IPMI: no answer to {silence.phase.value}"
            text += f" in {silence.seconds:.1f} s; is the BMC up, IPMI over LAN switched on, and UDP let through?"
        else:
            text = f"{self._endpoint} answers IPMI but gave no answer to {silence.phase.value}"
            text += f" with {self.present.suite} in {silence.seconds:.1f} s"
        raise OperationError(ErrorCode.UNREACHABLE, text, details={"phase": silence.phase.value})

    def _refusal_error(self, refusal: LoginRefused) -> OperationError:
        phase, status = refusal.phase, refusal.status
        meaning = STATUS_TEXTS.get(status, "a status that the specification does not define")
        what = f"{self._endpoint} refused {phase.value} with status {status:#04x} ({meaning})"
        code = ErrorCode.BMC_ERROR
        if status in _OF_THE_CREDENTIAL:
            code = ErrorCode.AUTH_FAILED
            what += ": the user or the password is wrong, or the user may not log in over IPMI"
        elif status in _OF_THE_ROLE:
            code = ErrorCode.AUTH_FAILED
            what += f": the user needs at least the {self.present.privilege.name} privilege on the LAN channel"
        elif status in _OF_THE_MOMENT:
            code = ErrorCode.BUSY
            what += f": it had no free session in {1 + self._crowded} tries; close other IPMI sessions or wait"
        elif status in _OF_THE_SUITE:
            code = ErrorCode.UNSUPPORTED
            what += ": it takes neither cipher suite 17 nor 3; allow one of them in the BMC's settings"
        return OperationError(
            code,
            what,
            bmc=[BmcMessage(f"{status:#04x}", meaning)],
            details={"phase": phase.value, "status": status, "suite": self.present.suite.number},
        )
