"""The machine's clock, where it is so wrong that no certificate holds: set by what the control plane's door says.

A machine whose clock battery is empty is years behind, and cannot join then. The time is taken from an answer that is
not verified yet. That gives nobody the token: it goes only to a server whose certificate is of the CA that the token
names, and whoever sets the clock still has none of those, unless an old one was stolen together with its key.
"""

import contextlib
import email.utils
import http.client
import ssl
import time
from collections.abc import Callable

import structlog

from agent.endpoint import Endpoint

__all__ = ["DATE_FAULTS", "correct_clock", "is_date_fault"]

_log = structlog.get_logger("ramdisk.wall_clock")
_TIMEOUT = 10.0
_TOLERATED_SECONDS = 300.0
DATE_FAULTS = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED (X509_STORE_CTX_get_error(3))."""


def is_date_fault(error: BaseException) -> bool:
    """Whether a join failed since a certificate does not hold at this time."""
    cause = error.__cause__
    return isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in DATE_FAULTS


def correct_clock(
    endpoint: Endpoint,
    set_clock: Callable[[float], None] | None = None,
    now: Callable[[], float] = time.time,
) -> float | None:
    """Sets the clock to the control plane's; by how many seconds it was wrong, or None where it was not, or its time
    cannot be had. Blocking."""
    told = _told_by(endpoint)
    if told is None:
        return None
    wrong_by = told - now()
    if abs(wrong_by) < _TOLERATED_SECONDS:
        return None
    try:
        (set_clock or _set)(told)
    except OSError as error:
        _log.error("clock_not_set", reason=str(error))
        return None
    return wrong_by


def _set(moment: float) -> None:
    time.clock_settime(time.CLOCK_REALTIME, moment)


def _told_by(endpoint: Endpoint) -> float | None:
    """The `Date` of an answer (RFC 9110, 6.6.1)."""
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=_TIMEOUT, context=unverified)
    try:
        connection.request("GET", "/healthz")
        date = connection.getresponse().getheader("Date")
        with contextlib.suppress(TypeError, ValueError):
            return email.utils.parsedate_to_datetime(date or "").timestamp()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return None
