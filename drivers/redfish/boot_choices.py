"""Which NICs the firmware boots from, and in which order, as `Boot.BootOrder` and the boot options tell. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drivers.redfish.document import Document, boolean, links, text
from drivers.redfish.mac_addresses import mac_of, macs_in

__all__ = ["BootChoice", "boot_choices", "card_path"]

_PATH_MAC = re.compile(r"\bMAC\(([0-9A-F]{12})\b", re.IGNORECASE)
_ON_PCI = re.compile(r"\bPci\([^)]*\)", re.IGNORECASE)
_ON_USB = re.compile(r"\bUSB\(", re.IGNORECASE)
_MAC_NODE = re.compile(r"/?\bMAC\(.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BootChoice:
    """One boot option that is a NIC's, or may be one."""

    name: str
    mac: str | None
    """From its device path; that is certain."""
    named_macs: tuple[str, ...]
    """From its name: some of them are a NIC's."""
    path: str | None
    """The device path up to the NIC."""
    items: tuple[str, ...]
    """The resources that it names as its own."""

    @property
    def is_card(self) -> bool:
        """Whether the device path alone proves a network card: on PCI, and not the BMC's own device on USB."""
        path = self.path or ""
        return self.mac is not None and _ON_PCI.search(path) is not None and _ON_USB.search(path) is None


def card_path(path: str | None) -> str | None:
    """A UEFI device path up to the NIC, without its address and what is started from it."""
    return _MAC_NODE.sub("", path or "") or None


def boot_choices(order: Iterable[str], options: Mapping[str, Document]) -> list[BootChoice]:
    """The enabled options in boot order. `options` are boot options by their paths.

    An entry of the order may go on after the reference (`Boot0019: Ubuntu`, NVIDIA VR).
    """
    by_reference = {
        reference.lower(): option for path, option in options.items() for reference in _references(path, option)
    }
    wanted = dict.fromkeys(entry.partition(":")[0].strip().lower() for entry in order)
    found = [by_reference[reference] for reference in wanted if reference in by_reference]
    return [_choice(option) for option in found if boolean(option, "BootOptionEnabled") is not False]


def _references(path: str, option: Document) -> list[str]:
    """What the boot order may call it: its reference, else its id (AMI: `0003` for Boot0003)."""
    reference = text(option, "BootOptionReference")
    if reference is not None:
        return [reference]
    name = text(option, "Id") or path.rstrip("/").rpartition("/")[2]
    return [name, f"Boot{name}"]


def _choice(option: Document) -> BootChoice:
    path, name = text(option, "UefiDevicePath") or "", text(option, "DisplayName") or text(option, "Name") or ""
    found = _PATH_MAC.search(path)
    return BootChoice(
        name=name,
        mac=mac_of(found.group(1)) if found is not None else None,
        named_macs=tuple(macs_in(name)),
        path=card_path(path),
        items=tuple(links(option, "RelatedItem")),
    )
