"""The host's NICs, put together from what the system, its cards and the firmware's boot order tell of them. Pure.

No BMC tells all in one place: an EthernetInterface has the address, a NetworkDeviceFunction ties it to a card, a port
has the link, a boot option the order. Each NIC is one address; what names no address of its own is matched by links.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from drivers.redfish.boot_choices import BootChoice, card_path
from drivers.redfish.document import Document, Found, dig, link, links, number, same_path, text
from drivers.redfish.inventory import place_of, whole
from drivers.redfish.mac_addresses import mac_of
from drivers.redfish.manners import Manners
from drivers.redfish.placeholders import real_text
from protocol.shapes.inspect import NetworkInterface

__all__ = ["Card", "Draft", "drafts_of", "is_own", "put_together"]

_LINKS = {"linkup": "up", "up": "up", "linkdown": "down", "down": "down", "nolink": "down"}
_TECHNOLOGIES = frozenset({"ethernet", "infiniband", "fibrechannel"})
_FUNCTION_LINKS = ("NetworkDeviceFunction", "NetworkDeviceFunctions")
_PORT_LINKS = ("PhysicalNetworkPortAssignment", "PhysicalPortAssignment")
_NUMBERS = re.compile(r"(\d+)")


@dataclass(slots=True)
class Card:
    """A network adapter with what was read of it."""

    path: str
    document: Document
    functions: list[Found] = field(default_factory=list)
    ports: list[Found] = field(default_factory=list)

    @property
    def name(self) -> str:
        return text(self.document, "Id") or text(self.document, "Name") or self.path.rstrip("/").rpartition("/")[2]

    @property
    def firmware(self) -> str | None:
        return next((word for item in self._controllers if (word := real_text(item, "FirmwarePackageVersion"))), None)

    @property
    def slot(self) -> str | None:
        return next((place for item in self._controllers if (place := place_of(item))), None) or place_of(
            self.document
        )

    @property
    def function_count(self) -> int | None:
        """How many functions the card itself says that it has; None where it does not say it (Lenovo: -1)."""
        counts = [whole(item, "ControllerCapabilities", "NetworkDeviceFunctionCount") for item in self._controllers]
        return sum(count or 0 for count in counts) if counts and all(counts) else None

    def holds(self, path: str | None) -> bool:
        """Whether the path leads into this card."""
        return path is not None and path.lower().startswith(f"{self.path.rstrip('/')}/".lower())

    @property
    def _controllers(self) -> list[Document]:
        found = dig(self.document, "Controllers")
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


@dataclass(slots=True)
class Draft:
    """A NIC as far as it is known."""

    name: str
    mac: str | None = None
    permanent: str | None = None
    path: str | None = None
    function: str | None = None
    pci: str | None = None
    link: str | None = None
    speed: int | None = None
    technology: str | None = None
    port: str | None = None
    port_path: str | None = None
    card: Card | None = None
    virtual: bool = False
    position: int | None = None

    def has(self, mac: str | None) -> bool:
        return mac is not None and mac in (self.mac, self.permanent)


def is_own(interface: Document) -> bool:
    """Whether it is the host's end of the line to its own BMC, which leads nowhere else (DMTF's `ToManager`)."""
    return link(interface, "Links", "HostInterface") is not None or text(interface, "Id") == "ToManager"


def drafts_of(interfaces: Iterable[Found]) -> list[Draft]:
    """The NICs that the system itself lists, those to its own BMC left out."""
    return [_of_interface(path, document) for path, document in interfaces if not is_own(document)]


def put_together(
    drafts: list[Draft], cards: list[Card], choices: list[BootChoice], bmc: frozenset[str], manners: Manners
) -> list[NetworkInterface]:
    """The NICs, each address once, in boot order and then by name. `bmc`: the addresses of the BMC itself."""
    for card in cards:
        _add_card(card, drafts)
    kept = _each_once(drafts)
    _add_order(choices, kept, manners)
    kept = [draft for draft in kept if draft.mac not in bmc]
    kept.sort(key=lambda draft: (draft.position or len(choices) + 1, _natural(draft)))
    positions = {id(draft): place for place, draft in enumerate((item for item in kept if item.position), 1)}
    return [_finished(draft, positions.get(id(draft))) for draft in kept]


def _of_interface(path: str, document: Document) -> Draft:
    mac, permanent = (mac_of(text(document, key)) for key in ("MACAddress", "PermanentMACAddress"))
    functions = [found for key in _FUNCTION_LINKS for found in links(document, "Links", key)]
    return Draft(
        name=real_text(document, "Id") or real_text(document, "Name") or path.rstrip("/").rpartition("/")[2],
        mac=mac or permanent,
        permanent=permanent,
        path=path,
        function=functions[0] if functions else None,
        pci=card_path(text(document, "UefiDevicePath")),
        link=_LINKS.get((text(document, "LinkStatus") or "").lower()),
        speed=whole(document, "SpeedMbps"),
        virtual=(text(document, "EthernetInterfaceType") or "").lower() == "virtual",
    )


def _add_card(card: Card, drafts: list[Draft]) -> None:
    for path, function in card.functions:
        _add_function(card, path, function, drafts)
    for draft in drafts:
        # An interface may name its function, or be named as its card (HPE Cray), where no function was read.
        if draft.card is None and (card.holds(draft.function) or draft.name == card.name):
            draft.card = card
    for path, port in card.ports:
        _add_port(card, path, port, drafts)


def _add_function(card: Card, path: str, function: Document, drafts: list[Draft]) -> None:
    mac, permanent = (mac_of(text(function, "Ethernet", key)) for key in ("MACAddress", "PermanentMACAddress"))
    own = links(function, "Links", "EthernetInterface") + links(function, "Links", "EthernetInterfaces")
    name = text(function, "Id") or path.rstrip("/").rpartition("/")[2]
    draft = next((item for item in drafts if item.has(mac) or item.has(permanent)), None) or next(
        (item for item in drafts if item.mac is None and (_is_any(item.function, [path]) or _is_any(item.path, own))),
        None,
    )
    if draft is None:
        known = card.name.lower() in name.lower()
        draft = Draft(name=name if known else f"{card.name}/{name}")
        drafts.append(draft)
    draft.mac = draft.mac or mac or permanent
    draft.permanent = draft.permanent or permanent
    draft.card = card
    draft.function = path
    kind = (text(function, "NetDevFuncType") or "").lower()
    draft.technology = kind if kind in _TECHNOLOGIES else draft.technology
    held = [
        found for key in _PORT_LINKS for holder in (dig(function, "Links"), function) for found in links(holder, key)
    ]
    draft.port_path = held[0] if held else draft.port_path
    draft.port = held[0].rstrip("/").rpartition("/")[2] if held else draft.port


def _add_port(card: Card, path: str, port: Document, drafts: list[Draft]) -> None:
    macs = [
        mac
        for holder, key in ((dig(port, "Ethernet"), "AssociatedMACAddresses"), (port, "AssociatedNetworkAddresses"))
        for word in _texts(holder, key)
        if (mac := mac_of(word)) is not None
    ]
    served = [
        draft
        for draft in drafts
        if any(draft.has(mac) for mac in macs) or (draft.card is card and _same_end(draft.port_path, path))
    ]
    for mac in macs if not card.functions else []:
        # Without a readable function the port alone tells of the NIC (Cisco blades have no EthernetInterfaces).
        if not any(draft.has(mac) for draft in drafts):
            served.append(Draft(name=f"{card.name}/{text(port, 'Id') or mac}", mac=mac))
            drafts.append(served[-1])
    technology = (text(port, "LinkNetworkTechnology") or text(port, "ActiveLinkTechnology") or "").lower()
    gigabits = number(port, "CurrentSpeedGbps")
    for draft in served:
        draft.card = draft.card or card
        draft.link = draft.link or _LINKS.get((text(port, "LinkStatus") or "").lower())
        draft.speed = (
            draft.speed or whole(port, "CurrentLinkSpeedMbps") or (round(gigabits * 1000) if gigabits else None)
        )
        draft.technology = draft.technology or (technology if technology in _TECHNOLOGIES else None)
        draft.port = real_text(port, "PhysicalPortNumber") or real_text(port, "PortId") or draft.port


def _add_order(choices: list[BootChoice], drafts: list[Draft], manners: Manners) -> None:
    for position, choice in enumerate(choices, 1):
        draft = _chosen(choice, drafts, manners)
        if draft is None and choice.is_card:
            # Not every service lists every NIC (NVIDIA GH200 lists none, HPE Cray no address of its fast ones).
            draft = Draft(name=choice.name or str(choice.mac), mac=choice.mac, pci=choice.path)
            drafts.append(draft)
        if draft is not None:
            draft.position = draft.position or position
            draft.pci = draft.pci or choice.path


def _chosen(choice: BootChoice, drafts: list[Draft], manners: Manners) -> Draft | None:
    """The NIC that a boot option starts from."""
    if choice.mac is not None:
        return next((draft for draft in drafts if draft.has(choice.mac)), None)
    for draft in drafts:
        if any(draft.has(mac) for mac in choice.named_macs):
            return draft
        if choice.items and (_is_any(draft.function, choice.items) or _is_any(draft.path, choice.items)):
            return draft
    if choice.path and choice.path.lower().startswith("pciroot"):
        same = [draft for draft in drafts if draft.pci and f"{choice.path}/".startswith(f"{draft.pci}/")]
        return same[0] if len(same) == 1 else None
    named = re.search(manners.nic_in_boot_name, choice.name) if manners.nic_in_boot_name else None
    if named is None:
        return None
    beginning = f"nic.{named.group('kind') or 'slot'}.{named.group('slot')}-{named.group('port')}".lower()
    return next(
        (d for d in drafts if d.name.lower() == beginning or d.name.lower().startswith(f"{beginning}-")), None
    )


def _each_once(drafts: Iterable[Draft]) -> list[Draft]:
    """One draft per address: a VLAN's comes after that of its port; those without an address all stay."""
    kept: dict[str, Draft] = {}
    for number_, draft in enumerate(sorted(drafts, key=lambda item: (item.virtual, _natural(item)))):
        kept.setdefault(draft.mac or f"#{number_}", draft)
    return list(kept.values())


def _natural(draft: Draft) -> tuple[tuple[int, int, str], ...]:
    """For sorting by name such that 2 comes before 10: makers number slots and ports in it."""
    return tuple(
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in _NUMBERS.split(draft.name.lower()) if part
    )


def _finished(draft: Draft, position: int | None) -> NetworkInterface:
    card = draft.card
    return NetworkInterface(
        name=draft.name,
        mac=draft.mac,
        permanent_mac=draft.permanent if draft.permanent != draft.mac else None,
        boot_position=position,
        link=draft.link,
        speed_mbps=draft.speed,
        technology=draft.technology or ("ethernet" if draft.path else None),
        vendor=real_text(card.document, "Manufacturer") if card else None,
        model=real_text(card.document, "Model") if card else None,
        adapter=card.name if card else None,
        slot=card.slot if card else None,
        port=draft.port,
        firmware=card.firmware if card else None,
        pci=draft.pci,
    )


def _is_any(path: str | None, others: Iterable[str]) -> bool:
    return path is not None and any(same_path(path, other) for other in others)


def _same_end(path: str | None, other: str) -> bool:
    """Whether both name the same port: a function may link it in the older or the newer of two collections."""
    return path is not None and same_path(path.rstrip("/").rpartition("/")[2], other.rstrip("/").rpartition("/")[2])


def _texts(value: object, key: str) -> Iterator[str]:
    found = dig(value, key)
    yield from (item for item in (found if isinstance(found, list) else []) if isinstance(item, str))
