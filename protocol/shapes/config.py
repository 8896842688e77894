"""Configuration of the BMC itself."""

from enum import StrEnum

from protocol.shapes import Arguments, Result

__all__ = [
    "BmcConfig",
    "Certificate",
    "Certificates",
    "EventDestination",
    "ExportConfig",
    "ExportConfigResult",
    "GenerateCsr",
    "GenerateCsrResult",
    "HostRestart",
    "ImportConfig",
    "ImportConfigResult",
    "KeyAlgorithm",
    "NetworkProtocolConfig",
    "ReplaceCertificate",
    "ReplaceCertificateResult",
    "RotatePassword",
    "RotatePasswordResult",
    "SetConfig",
    "SetConfigResult",
]


class NetworkProtocolConfig(Arguments, frozen=True, kw_only=True):
    enabled: bool
    """Whether the BMC offers it."""
    port: int | None = None
    """The port that it listens on; it stays as it is where this is left out."""


class EventDestination(Arguments, frozen=True, kw_only=True):
    url: str
    """Where the BMC sends its events."""
    context: str | None = None
    """A text that it sends along."""


class BmcConfig(Result, frozen=True, kw_only=True):
    """What a BMC does not have is null, or empty."""

    host_name: str | None = None
    fqdn: str | None = None
    ntp_enabled: bool | None = None
    ntp_servers: list[str] = []
    """Those that were set, in their order."""
    ntp_supplied_servers: list[str] = []
    """Those that the network gave (DHCP)."""
    time: str | None = None
    """The BMC's clock, as it writes it (ISO 8601)."""
    time_offset: str | None = None
    """Its offset from UTC, such as +02:00."""
    protocols: dict[str, NetworkProtocolConfig] = {}
    """By the names that Redfish gives them: HTTPS, SSH, IPMI, KVMIP, …"""
    event_destinations: list[EventDestination] = []


class SetConfig(Arguments, frozen=True, kw_only=True):
    """Only the fields that are given are changed."""

    host_name: str | None = None
    """The BMC's own name in the network."""
    ntp_enabled: bool | None = None
    """Whether it takes the time from NTP servers."""
    ntp_servers: list[str] | None = None
    """The whole list, in order."""
    time: str | None = None
    """ISO 8601 with an offset, or `now`: the clock of the host that carries this out."""
    time_offset: str | None = None
    """Its clock's offset from UTC, such as +02:00."""
    protocols: dict[str, NetworkProtocolConfig] | None = None
    """By the names that Redfish gives them, such as protocols.SSH.enabled=false."""
    event_destinations: list[EventDestination] | None = None
    """Those that are missing are made. Those made without a context bear this product's, and are taken away once they
    are not listed any more; nobody else's are touched."""


class SetConfigResult(Result, frozen=True, kw_only=True):
    changed: list[str]


class RotatePassword(Arguments, frozen=True, kw_only=True):
    user: str
    """The account whose password is changed."""
    new_credential_ref: str
    """The agent's vault holds the new password under this name; it never travels."""


class RotatePasswordResult(Result, frozen=True, kw_only=True):
    user: str
    proven: bool
    """A login with the new password succeeded before the old one was forgotten."""
    changed: bool = True
    """False where the BMC had the new password already."""


class Certificate(Result, frozen=True, kw_only=True):
    """One certificate of the BMC's web server. What the BMC does not tell is null."""

    id: str
    subject: str | None = None
    """Such as CN=bmc7, O=Example."""
    issuer: str | None = None
    valid_from: str | None = None
    valid_until: str | None = None
    serial_number: str | None = None
    fingerprint: str | None = None
    """SHA-256, in lower-case hexadecimal digits."""
    pem: str | None = None


class Certificates(Result, frozen=True, kw_only=True):
    certificates: list[Certificate]
    served: str | None = None
    """The fingerprint of what the BMC shows in a TLS handshake; null where it is not spoken to by TLS."""


class KeyAlgorithm(StrEnum):
    RSA = "rsa"
    EC = "ec"


class GenerateCsr(Arguments, frozen=True, kw_only=True):
    """The subject, and what key the BMC shall make. The key never leaves the BMC."""

    common_name: str
    """The name that the certificate is for (CN)."""
    alternative_names: list[str] = []
    """Further names and addresses that it is for."""
    organization: str | None = None
    """O; some BMCs ask for it."""
    organizational_unit: str | None = None
    """OU; some BMCs ask for it."""
    city: str | None = None
    """L; some BMCs ask for it."""
    state: str | None = None
    """ST; some BMCs ask for it."""
    country: str | None = None
    """Two letters."""
    email: str | None = None
    """Whom to ask about it."""
    key_algorithm: KeyAlgorithm | None = None
    """The BMC's own choice where it is left out, and the BMC does not ask for one."""
    key_bits: int | None = None
    """The length of an RSA key, such as 3072."""
    key_curve: str | None = None
    """p256, p384 or p521."""


class GenerateCsrResult(Result, frozen=True, kw_only=True):
    csr: str
    """The signing request, in PEM."""
    public_key: str
    """SHA-256 of the public key (SubjectPublicKeyInfo): the signed certificate has the same."""


class ReplaceCertificate(Arguments, frozen=True, kw_only=True):
    certificate: str
    """The signed certificate in PEM; those of its issuers may follow it. Never a key."""


class ReplaceCertificateResult(Result, frozen=True, kw_only=True):
    fingerprint: str
    changed: bool
    served: bool
    """The BMC shows it in a TLS handshake."""
    reset_owed: bool = False
    """The BMC has taken it and shows it only once it is restarted."""


class ExportConfig(Arguments, frozen=True, kw_only=True):
    part: str | None = None
    """A part alone, in the vendor's own word for it (Dell: IDRAC, BIOS, NIC, RAID, …); everything by default."""


class ExportConfigResult(Result, frozen=True, kw_only=True):
    document: str
    """Values of passwords and keys are masked."""
    format: str
    masked: list[str] = []
    """The names of what was masked."""


class HostRestart(StrEnum):
    """What may be done to the host for a profile that needs it."""

    NONE = "none"
    """Nothing: what needs a restart waits for the next one."""
    GRACEFUL = "graceful"
    FORCED = "forced"


class ImportConfig(Arguments, frozen=True, kw_only=True):
    document: str
    """As it was exported. What is masked in it is left out; a password or key in clear is refused."""
    restart: HostRestart = HostRestart.NONE
    """What may be done to the host, where the profile needs a restart."""


class ImportConfigResult(Result, frozen=True, kw_only=True):
    task: str | None = None
    reset_owed: bool = False
