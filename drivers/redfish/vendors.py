"""What is known of single vendors' hardware, as data: who, under which condition, what differs, and the source.

Each row changes fields of `Manners`, and those are what operations ask for.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from drivers.redfish.document import Document, dig, text
from drivers.redfish.manners import Manners, OemCertificate, OemSettings, RaidService

__all__ = ["QUIRKS", "Facts", "Quirk", "facts_of", "manners_of"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Who a BMC is, from its service root and its system; all in lower case, empty where it does not say."""

    vendor: str = ""
    product: str = ""
    manufacturer: str = ""
    model: str = ""
    oem: frozenset[str] = frozenset()

    def is_of(self, *names: str) -> bool:
        """Whether any of the names begins the vendor, the manufacturer, or a key of the root's `Oem`; spaces in them
        do not count (Super Micro Computer, Inc.)."""
        makers = [maker.replace(" ", "") for maker in (self.vendor, self.manufacturer)]
        return any(any(maker.startswith(name) for maker in makers) or name in self.oem for name in names)


@dataclass(frozen=True, slots=True)
class Quirk:
    """One row: `who` and `source` are for people, `applies` decides, `differs` is laid over the defaults."""

    who: str
    applies: Callable[[Facts], bool]
    source: str
    differs: Mapping[str, object] = field(default_factory=dict)


def facts_of(root: Document, system: Document) -> Facts:
    oem = dig(root, "Oem")
    return Facts(
        vendor=(text(root, "Vendor") or "").lower(),
        product=(text(root, "Product") or "").lower(),
        manufacturer=(text(system, "Manufacturer") or "").lower(),
        model=(text(system, "Model") or "").lower(),
        oem=frozenset(str(key).lower() for key in oem) if isinstance(oem, dict) else frozenset(),
    )


def manners_of(facts: Facts) -> Manners:
    """The defaults with every row that applies laid over them, in the table's order."""
    manners = Manners()
    for quirk in QUIRKS:
        if quirk.applies(facts):
            manners = replace(manners, **quirk.differs)  # type: ignore[arg-type]
    return manners


def _of(*names: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.is_of(*names)


def _of_model(names: tuple[str, ...], model: str) -> Callable[[Facts], bool]:
    pattern = re.compile(model, re.IGNORECASE)
    return lambda facts: facts.is_of(*names) and pattern.search(facts.model) is not None


_SUPERMICRO_X12 = re.compile(r"\bx12|^[a-z]{3}-(f?\d\d0[a-z]|e\d+-12)")
"""A board names its generation; a server has it as its third digit (SYS-120U is an X12, SYS-121H an X13)."""
_SUPERMICRO_NAMED = re.compile(r"\b[xhbm]\d|^[a-z]{2,3} ?-")


def _may_be_x12(facts: Facts) -> bool:
    """Also a machine of this maker whose model names no generation ("Super Server"): an address without these marks
    suits them all."""
    if not facts.is_of("supermicro"):
        return False
    return bool(_SUPERMICRO_X12.search(facts.model)) or not _SUPERMICRO_NAMED.search(facts.model)


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        who="Dell iDRAC 8 to 10: SKU holds the service tag, SerialNumber that of the board",
        applies=_of("dell"),
        source="recorded trees dell-r750-*; Dell's Redfish guide, ComputerSystem.SKU",
        differs={"serial_property": "SKU", "bmc_type": "iDRAC"},
    ),
    Quirk(
        who="Dell iDRAC 9: SerialConsole is off and empty; the console is opened on its command line (console com2)",
        applies=_of("dell"),
        source="recorded trees dell-r750-*; iDRAC user's guide, SSH serial redirection",
        differs={"console_in_shell": True},
    ),
    Quirk(
        who="Supermicro X11, X12, H13: boots a virtual CD as UsbCd, not as Cd",
        applies=_of("supermicro"),
        source="sushy release notes change-bootdev-smc and supermicro-vmedia-dev-workaround",
        differs={"cd_targets": ("UsbCd", "Cd", "CD/DVD", "UefiUsbCd", "UefiCd")},
    ),
    Quirk(
        who="Supermicro ARS-111GL: has UsbCd in its list and boots only Cd",
        applies=_of_model(("supermicro",), r"^ars-111gl"),
        source="sushy, exceptions to the UsbCd rule",
        differs={"cd_targets": ("Cd", "UsbCd")},
    ),
    Quirk(
        who="Supermicro: an override without a mode goes back to legacy boot; without enabled, to Once",
        applies=_of("supermicro"),
        source="OpenStack story 2008252 and 2008547; DMTF Redfishtool pull request 106",
        differs={"resend_mode": True},
    ),
    Quirk(
        who="Supermicro: a slot may report Inserted, and NotConnected beside it",
        applies=_of("supermicro"),
        source="ansible-collections/community.general issue 6969 and pull request 7470",
        differs={"connected_tells": True},
    ),
    Quirk(
        who="Supermicro X12: an image address may not hold ? or =",
        applies=_may_be_x12,
        source="OpenStack Ironic's notes on Supermicro virtual media; recorded tree supermicro-821ge (an X13DEG)",
        differs={"image_may_not_hold": "?="},
    ),
    Quirk(
        who="AMI MegaRAC (Gigabyte, ASRock Rack, DGX H100): a part of the override alone is refused",
        applies=_of("ami"),
        source="OpenStack Ironic release notes redfish-full-boot-payload and full-request",
        differs={"full_override": True, "resend_mode": True, "bmc_type": "MegaRAC"},
    ),
    Quirk(
        who="AMI MegaRAC (DGX H100, GB300 hosts): members sent with $expand lack Id, Name and ChassisType",
        applies=_of("ami"),
        source="NVIDIA nv-redfish, bmc_quirks, expand_is_not_working_properly",
        differs={"expands_members": False},
    ),
    Quirk(
        who="HPE iLO 5: the PCI ids of its PCIeFunctions are decimal numbers (iLO 6 writes 0X and hexadecimal)",
        applies=_of("hpe"),
        source="recorded trees hpe-dl385-ilo5 and hpe-dl380a-ilo6",
        differs={"decimal_pci_ids": True},
    ),
    Quirk(
        who="Dell iDRAC 9: a boot option names its NIC by slot and port, and by nothing else",
        applies=_of("dell"),
        source="recorded trees dell-r750-*, BootOptions ('HTTP Device 1: NIC in Slot 5 Port 1')",
        differs={"nic_in_boot_name": r"((?P<kind>Integrated) )?NIC (in Slot )?(?P<slot>\d+) Port (?P<port>\d+)"},
    ),
    Quirk(
        who="Dell iDRAC 9 before 5.10: NTP and the BMC's name are written in DellAttributes only",
        applies=_of("dell"),
        source="dell/iDRAC-Redfish-Scripting, SetIdracLcSystemAttributesREDFISH; recorded trees dell-r750-*",
        differs={
            "oem_settings": OemSettings(
                resource=("Links", "Oem", "Dell", "DellAttributes"),
                ntp_servers=tuple(f"Attributes/NTPConfigGroup.1.NTP{number}" for number in (1, 2, 3)),
                ntp_enabled="Attributes/NTPConfigGroup.1.NTPEnable",
                host_name="Attributes/NIC.1.DNSRacName",
            )
        },
    ),
    Quirk(
        who="HPE iLO 5 and 6: NTP servers are in DateTime, and not in NetworkProtocol",
        applies=_of("hpe"),
        source="recorded trees hpe-dl385-ilo5 and hpe-dl380a-ilo6; HPE iLO resource definitions, HpeiLODateTime",
        differs={
            "oem_settings": OemSettings(
                resource=("Oem", "Hpe", "Links", "DateTimeService"),
                ntp_servers=("StaticNTPServers",),
                ntp_effective="NTPServers",
            )
        },
    ),
    Quirk(
        who="HPE iLO 5 and 6: the web server's certificate is an HttpsCert, with actions of its own",
        applies=_of("hpe"),
        source="HPE iLO resource definitions, HpeHttpsCert; recorded trees hpe-dl385-ilo5, hpe-dl380a-ilo6 (links)",
        differs={
            "oem_certificate": OemCertificate(
                way=(("Oem", "Hpe", "Links", "SecurityService"), ("Links", "HttpsCert")),
                shown="X509CertificateInformation",
                generate="HpeHttpsCert.GenerateCSR",
                request="CertificateSigningRequest",
                words={"Organization": "OrgName", "OrganizationalUnit": "OrgUnit"},
                replace="HpeHttpsCert.ImportCertificate",
                certificate="Certificate",
            )
        },
    ),
    Quirk(
        who="Dell iDRAC 9 and later: events go to https listeners only",
        applies=_of("dell"),
        source="Dell's OpenManage collection for Ansible, redfish_event_subscription, destination",
        differs={"events_by_https_only": True},
    ),
    Quirk(
        who="HPE iLO: events go to https listeners only",
        applies=_of("hpe"),
        source="HPE server management portal, The Redfish Event Service, Event subscription",
        differs={"events_by_https_only": True},
    ),
    Quirk(
        who="Supermicro: event subscriptions are fixed slots, switched on by a PATCH",
        applies=_of("supermicro"),
        source="Supermicro Redfish reference guide, Event Service; recorded tree supermicro-821ge",
        differs={"subscription_switch": ("Supermicro", "EnableSubscription")},
    ),
    Quirk(
        who="HPE iLO 4 to 6: an eject without a body is refused with 400 or 415",
        applies=_of("hpe"),
        source="OpenStack sushy, release note fix-eject-empty-dict; Launchpad bug 2114737",
        differs={"eject_wants_body": True},
    ),
    Quirk(
        who="Lenovo XCC: the RDOC slots take uploads only",
        applies=_of("lenovo"),
        source="python-redfish-lenovo; recorded tree lenovo-sr670v2-xcc",
        differs={"upload_slots": r"^RDOC", "bmc_type": "XCC"},
    ),
    Quirk(
        who="Lenovo XCC: lists the apply time OnReset for BIOS settings and refuses it as an unknown property",
        applies=_of("lenovo"),
        source="metal-toolbox/bmclib, its Lenovo BIOS settings; recorded tree lenovo-sr670v2-xcc",
        differs={"bios_refuses_apply_time": True},
    ),
    Quirk(
        who="Dell iDRAC: BIOS settings without an apply time stay pending for ever; new values may show early",
        applies=_of("dell"),
        source="dell/iDRAC-Redfish-Scripting issue 84; NVIDIA libredfish pull request 25",
        differs={"bios_needs_apply_time": True, "bios_shows_pending": True},
    ),
    Quirk(
        who="Lenovo ThinkSystem SR675 V3: a forced restart can hang",
        applies=_of_model(("lenovo",), r"sr675"),
        source="NVIDIA libredfish, its Lenovo reset",
        differs={"restart_by_off_and_on": True},
    ),
    Quirk(
        who="Dell iDRAC 9: the inventory shows a component as Installed-, again as Current-, and as Previous- what "
        "it can be rolled back to",
        applies=_of("dell"),
        source="recorded trees dell-r750-*, FirmwareInventory",
        differs={"firmware_copies": r"^(Current|Previous|Available)-"},
    ),
    Quirk(
        who="Dell iDRAC 9: a multipart push takes an apply time without advertising it, and wants Targets; the plain "
        "push only stores the image",
        applies=_of("dell"),
        source="Dell's iDRAC-Redfish-Scripting, multipart upload; NVIDIA libredfish, its Dell update",
        differs={"push_apply_times": ("Immediate", "OnReset"), "push_wants_targets": True, "push_form": "store"},
    ),
    Quirk(
        who="Dell iDRAC 9: jobs outlive the tasks that stand for them",
        applies=_of("dell"),
        source="OpenStack Ironic's notes on purged tasks; recorded tree dell-r750-idrac9-7.10, manager links",
        differs={"jobs": ("Links", "Oem", "Dell", "Jobs")},
    ),
    Quirk(
        who="HPE iLO 5 and 6: HttpPushUri takes a form of its own, with the session's key in it and in a cookie; the "
        "update's state is in Oem.Hpe; the ROM that does not run is the redundant one",
        applies=_of("hpe"),
        source="HPE's python-ilorest-library, upload to the iLO repository; HPE's guide to the iLO update service",
        differs={
            "push_form": "ilo",
            "update_state": ("Oem", "Hpe"),
            "firmware_copies": r"^Redundant System ROM$",
        },
    ),
    Quirk(
        who="Supermicro X11 to H13: an update names the manager or BIOS, not the inventory entry; backup, golden and "
        "staged images are entries too",
        applies=_of("supermicro"),
        source="Supermicro's Redfish guide, multipart update; recorded tree supermicro-821ge, FirmwareInventory",
        differs={
            "targets_by_relation": True,
            "push_apply_times": ("Immediate",),
            "firmware_copies": r"^(Backup|Golden|Staging|Capsule)_",
        },
    ),
    Quirk(
        who="Lenovo XCC: the inventory holds the backup and the pending image as entries of their own",
        applies=_of("lenovo"),
        source="recorded tree lenovo-sr670v2-xcc, FirmwareInventory",
        differs={"firmware_copies": r"-(Pending|Backup)$"},
    ),
    Quirk(
        who="NVIDIA BlueField-3: golden images are entries of the inventory",
        applies=_of("nvidia"),
        source="recorded tree nvidia-bluefield3, FirmwareInventory",
        differs={"firmware_copies": r"^golden_image"},
    ),
    Quirk(
        who="Dell PERC: makes volumes in RAID mode only; foreign configurations stand in the way until cleared",
        applies=_of("dell"),
        source="Dell's iDRAC-Redfish-Scripting, SetStorageControllerMode; PERC user's guide, controller modes",
        differs={
            "raid_mode_hint": "set ControllerMode to RAID in the settings of its StorageController (iDRAC: Storage, "
            "Controllers, Edit), restart the server, and ask again"
        },
    ),
    Quirk(
        who="Dell iDRAC 9: no Storage.ResetToDefaults; a controller is cleared by DellRaidService",
        applies=_of("dell"),
        source="recorded trees dell-r750-*, DellRaidService; Dell's iDRAC-Redfish-Scripting, ResetConfig",
        differs={
            "raid_service": RaidService(
                where=("Links", "Oem", "Dell", "DellRaidService"),
                reset="DellRaidService.ResetConfig",
                clear_foreign="DellRaidService.ClearForeignConfig",
                parameter="TargetFQDD",
            )
        },
    ),
)
