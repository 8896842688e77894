"""How to deal with a BMC where the standard leaves a choice, or where its maker has left the standard.

Operations ask for a field of `Manners` and never for a vendor; `vendors.py` says who differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Manners", "OemCertificate", "OemSettings", "RaidService"]


@dataclass(frozen=True, slots=True)
class RaidService:
    """A maker's own service for RAID controllers: where the system links it, and its actions."""

    where: tuple[str, ...]
    reset: str
    """Deletes all volumes and frees all hot spares of the controller that `parameter` names by its id."""
    clear_foreign: str
    parameter: str


@dataclass(frozen=True, slots=True)
class OemSettings:
    """A vendor's own resource for settings of the BMC. Properties are named by their way in it, with slashes."""

    resource: tuple[str, ...]
    """Where the manager links it."""
    ntp_servers: tuple[str, ...]
    """One property with the list, or one per server."""
    ntp_effective: str = ""
    """Where the servers are listed that the BMC uses, the network's included."""
    ntp_enabled: str = ""
    enabled_words: tuple[str, str] = ("Enabled", "Disabled")
    host_name: str = ""


@dataclass(frozen=True, slots=True)
class OemCertificate:
    """A vendor's own resource for the certificate of the BMC's web server."""

    way: tuple[tuple[str, ...], ...]
    """Where the manager links it, from one resource to the next."""
    shown: str
    """The property with subject, issuer and dates."""
    generate: str
    """The action that makes a signing request, which appears in the property `request`."""
    request: str
    words: Mapping[str, str]
    """What the action calls the standard's parameters, where it differs. Others than these and the same-named are not
    sent."""
    replace: str
    """The action that takes the certificate, in its parameter `certificate`."""
    certificate: str


@dataclass(frozen=True, slots=True)
class Manners:
    """How to deal with a BMC where the standard leaves a choice. The defaults suit a BMC that keeps to it."""

    cd_targets: tuple[str, ...] = ("Cd", "UsbCd", "CD/DVD", "UefiCd", "UefiUsbCd", "RemoteDrive")
    """Boot targets that stand for a (virtual) CD, best first."""
    resend_mode: bool = False
    """A boot override without a mode changes the mode."""
    full_override: bool = False
    """A boot override is taken only with enabled, target and mode in one request."""
    restart_by_off_and_on: bool = False
    """A forced restart may hang: off, wait, on."""
    serial_property: str = "SerialNumber"
    """The system property that its maker's support asks for."""
    bmc_type: str | None = None
    """What this vendor calls its BMC, where the manager's model does not say it."""
    upload_slots: str | None = None
    """Names of media slots that take uploads only (a regular expression)."""
    connected_tells: bool = False
    """A slot may say Inserted while nothing is connected: ConnectedVia decides."""
    eject_wants_body: bool = False
    """An eject without a body is refused."""
    image_may_not_hold: str = ""
    """Characters that an image address must not have."""
    bios_refuses_apply_time: bool = False
    """BIOS settings are applied with the next start, and a request that says so is refused."""
    bios_needs_apply_time: bool = False
    """BIOS settings that came without an apply time are kept and never applied."""
    bios_shows_pending: bool = False
    """The BIOS may show a new value before the job that brings it has ended."""
    oem_settings: OemSettings | None = None
    """For settings of the BMC that it lacks, or does not let be written, in the standard's place."""
    oem_certificate: OemCertificate | None = None
    """For the certificate of a BMC that has none in the standard's place."""
    events_by_https_only: bool = False
    """An event listener without a certificate is refused."""
    subscription_switch: tuple[str, str] | None = None
    """Subscriptions are slots that are always there: the section of `Oem` and the property that switches one on."""
    firmware_copies: str | None = None
    """Ids or names of inventory entries that do not run: staged, backup, roll-back, shown twice (an expression)."""
    push_form: str = "redfish"
    """What HttpPushUri takes: the image as it is (redfish), the vendor's own form (ilo), or nothing that installs an
    image (store)."""
    push_apply_times: tuple[str, ...] = ()
    """Apply times that the multipart push takes though it does not advertise them."""
    push_wants_targets: bool = False
    """The multipart push wants Targets, if only an empty list."""
    targets_by_relation: bool = False
    """An update names what a component belongs to (its RelatedItem), and not the inventory entry."""
    update_state: tuple[str, ...] = ()
    """Where in the update service the vendor shows State, FlashProgressPercent and Result of an update."""
    jobs: tuple[str, ...] = ()
    """Where in the manager the vendor links the jobs, which outlive their tasks."""
    console_in_shell: bool = False
    """The serial console is reached from the BMC's command line, and no resource says so."""
    expands_members: bool = True
    """Members that come with `$expand` are as complete as those read one by one."""
    decimal_pci_ids: bool = False
    """PCI ids without `0x` are decimal."""
    raid_mode_hint: str = "set it to RAID mode in its own setup or settings, restart the machine, and ask again"
    """How a controller in HBA mode is made to make volumes."""
    raid_service: RaidService | None = None
    """The maker's own service for what RAID controllers do."""
    nic_in_boot_name: str | None = None
    """How a boot option's name tells its NIC (a regular expression with the groups kind, slot and port)."""
