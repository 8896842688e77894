"""Which BMC, by which driver, with which credential, trusted how far."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from functools import cached_property

from protocol.addresses import Address, Scheme, TlsMode, TlsPolicy
from protocol.errors import ErrorCode, OperationError
from protocol.operations import DRIVERS
from protocol.secret import Secret

__all__ = ["Target"]

_DRIVER_OF = {
    Scheme.HTTPS: "redfish",
    Scheme.HTTP: "redfish",
    Scheme.IPMI: "ipmi",
    Scheme.SSH: "ssh",
    Scheme.SIMULATED: "simulated",
}
_process_key = secrets.token_bytes(32)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One BMC as an operation sees it.

    `address`: the forms of `protocol.addresses`. `driver`: a name of `protocol.operations.DRIVERS`, or `auto`, which
    goes by the address; a bare host is tried as Redfish, then as IPMI. `verify`: True (the host's CAs), False (no
    check), or a `TlsPolicy` form such as `sha256:…`, `ca:/path` or `first-use`. `allow_http`: consent to send the
    password in clear to an address that is not loopback. `credential_version` changes when the password changes, so
    that a blocked login is tried again; by default it is derived from the credential itself. `lane` names the machine
    where several addresses lead to it, so that its changes still go one at a time.

    Raises OperationError INVALID_ARGUMENT when a field is unusable; the text never holds the password.
    """

    address: str
    driver: str = "auto"
    username: str | None = None
    password: Secret | str | None = field(default=None, repr=False)
    verify: bool | str = True
    allow_http: bool = False
    credential_version: str | None = field(default=None, repr=False)
    lane: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.password, str):
            object.__setattr__(self, "password", Secret(self.password))
        for what, value in (("user name", self.username or ""), ("password", self.secret.reveal())):
            if not _is_text(value):
                raise _invalid(f"the {what} is not UTF-8 text: no BMC could be given it")
        address = self._parse()
        if self.driver != "auto" and self.driver not in DRIVERS:
            raise _invalid(f"there is no driver {self.driver!r}: use auto, {', '.join(DRIVERS)}")
        expected = _DRIVER_OF.get(address.scheme)
        if self.driver not in ("auto", expected) and expected is not None and self.driver != "linux":
            raise _invalid(
                f"the {self.driver} driver cannot speak to {address}: leave it out, or give its own address form"
            )
        if (
            address.scheme is Scheme.HTTP
            and not address.is_loopback
            and not self.allow_http
            and self.tls.mode is not TlsMode.NONE
        ):
            raise _invalid(
                f"{address} would carry the password in clear: use https://, "
                "or consent with --allow-http (allow_http=True)"
            )

    def _parse(self) -> Address:
        try:
            address = Address.parse(self.address)
            _ = self.tls
        except ValueError as error:
            raise _invalid(str(error)) from None
        return address

    @cached_property
    def parsed(self) -> Address:
        return Address.parse(self.address)

    @cached_property
    def tls(self) -> TlsPolicy:
        if isinstance(self.verify, str):
            return TlsPolicy.parse(self.verify)
        return TlsPolicy(TlsMode.VERIFY if self.verify else TlsMode.NONE)

    @property
    def driver_name(self) -> str | None:
        """The driver that serves this target, or None while it must still be found by asking the BMC."""
        return self.driver if self.driver != "auto" else _DRIVER_OF.get(self.parsed.scheme)

    @property
    def lane_key(self) -> str:
        return self.lane or self.endpoint

    @cached_property
    def endpoint(self) -> str:
        """`host:port` of the BMC: what a lock-out and a session belong to."""
        address = self.parsed
        return f"{address.host}:{address.port}"

    @property
    def secret(self) -> Secret:
        """The password; an empty one where none was given."""
        return self.password if isinstance(self.password, Secret) else Secret(self.password or "")

    @cached_property
    def credential_key(self) -> str:
        """Tells two credentials apart without giving either away; of use within this process only."""
        if self.credential_version is not None:
            return f"{self.username}\0{self.credential_version}"
        text = f"{self.username}\0{self.secret.reveal()}".encode()
        return hmac.new(_process_key, text, hashlib.sha256).hexdigest()


def _is_text(value: str) -> bool:
    """Whether it can be sent at all: bytes that were no UTF-8 are kept by Python as half surrogate pairs."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid(message: str) -> OperationError:
    return OperationError(ErrorCode.INVALID_ARGUMENT, message)
