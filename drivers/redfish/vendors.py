"""What is known of single vendors' hardware, as data: who, under which condition, what differs, and the source.

Operations ask for a `Manners` field and never for a vendor.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from drivers.redfish.document import Document, dig, text

__all__ = ["QUIRKS", "Facts", "Manners", "Quirk", "facts_of", "manners_of"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Who a BMC is, from its service root and its system; all in lower case, empty where it does not say."""

    vendor: str = ""
    product: str = ""
    manufacturer: str = ""
    model: str = ""
    oem: frozenset[str] = frozenset()

    def is_of(self, *names: str) -> bool:
        """Whether any of the names begins the vendor, the manufacturer, or a key of the root's `Oem`."""
        return any(
            self.vendor.startswith(name) or self.manufacturer.startswith(name) or name in self.oem for name in names
        )


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
    image_may_not_hold: str = ""
    """Characters that an image address must not have."""


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


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        who="Dell iDRAC 8 to 10: SKU holds the service tag, SerialNumber that of the board",
        applies=_of("dell"),
        source="recorded trees dell-r750-*; Dell's Redfish guide, ComputerSystem.SKU",
        differs={"serial_property": "SKU", "bmc_type": "iDRAC"},
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
        applies=_of_model(("supermicro",), r"x12"),
        source="OpenStack Ironic's notes on Supermicro virtual media",
        differs={"image_may_not_hold": "?="},
    ),
    Quirk(
        who="AMI MegaRAC (Gigabyte, ASRock Rack, DGX H100): a part of the override alone is refused",
        applies=_of("ami"),
        source="OpenStack Ironic release notes redfish-full-boot-payload and full-request",
        differs={"full_override": True, "resend_mode": True, "bmc_type": "MegaRAC"},
    ),
    Quirk(
        who="Lenovo XCC: the RDOC slots take uploads only",
        applies=_of("lenovo"),
        source="python-redfish-lenovo; recorded tree lenovo-sr670v2-xcc",
        differs={"upload_slots": r"^RDOC", "bmc_type": "XCC"},
    ),
    Quirk(
        who="Lenovo ThinkSystem SR675 V3: a forced restart can hang",
        applies=_of_model(("lenovo",), r"sr675"),
        source="NVIDIA libredfish, its Lenovo reset",
        differs={"restart_by_off_and_on": True},
    ),
)
