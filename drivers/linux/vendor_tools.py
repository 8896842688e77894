"""What makers' own programs tell, where the ramdisk carries them: drives behind a RAID controller, which the kernel
does not show, and firmware versions. Each parser is pure; a program that is not there tells nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from drivers.linux.host import Host
from drivers.linux.words import real
from protocol.errors import OperationError
from protocol.shapes.inspect import Drive, FirmwareVersion

__all__ = [
    "TOOLS",
    "Told",
    "Tool",
    "ask_tools",
    "parse_dsu",
    "parse_ipmicfg",
    "parse_mlxup",
    "parse_msecli",
    "parse_mvcli_drives",
    "parse_mvcli_hba",
    "parse_mvcli_volumes",
    "parse_storcli",
]

_SECONDS = 120.0
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40, "PB": 1 << 50}
_DSU = re.compile(r"^\d+\.\s+[A-Z]{4},\s*(?P<name>.*?)\s*\(\s*Version\s*:\s*(?P<version>.*?)\s*\)\s*$", re.MULTILINE)
_SIZE = re.compile(r"([\d.]+)\s*([KMGTP]?B)", re.IGNORECASE)
_GOOD_STATES = {"UGood", "Onln", "JBOD", "GHS", "DHS"}


@dataclass(frozen=True, slots=True)
class Told:
    drives: tuple[Drive, ...] = ()
    firmware: tuple[FirmwareVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, its words, and what is made of its output."""

    program: str
    words: tuple[str, ...]
    parse: Callable[[str], Told]


async def ask_tools(host: Host) -> Told:
    """What all the installed ones tell. One that fails, or says what nobody understands, is passed over."""
    told = Told()
    for tool in TOOLS:
        if not host.has(tool.program):
            continue
        try:
            ran = await host.run(tool.program, *tool.words, timeout=_SECONDS)
        except OperationError:
            continue
        found = tool.parse(ran.out)
        told = replace(told, drives=told.drives + found.drives, firmware=told.firmware + found.firmware)
    return told


def parse_storcli(words: str) -> Told:
    """`storcli /call show J`: Broadcom's RAID controllers and HBAs. A machine without one answers with a failure."""
    try:
        document = json.loads(words)
    except ValueError:
        return Told()
    told = Told()
    for entry in _mappings(document, "Controllers"):
        data = entry.get("Response Data")
        if not isinstance(data, Mapping):
            continue
        name = real(str(data.get("Product Name", ""))) or "storage controller"
        address = _storcli_address(str(data.get("PCI Address", "")))
        version = real(str(data.get("FW Version", "")))
        drives = tuple(_storcli_drive(row, address or name) for row in _mappings(data, "PD LIST"))
        versions = () if version is None else (FirmwareVersion(name=name, version=version),)
        told = replace(told, drives=told.drives + drives, firmware=told.firmware + versions)
    return told


def _storcli_drive(row: Mapping[str, object], controller: str) -> Drive:
    kind = str(row.get("Med", "")).lower()
    state = str(row.get("State", ""))
    return Drive(
        name=f"{controller} {row.get('EID:Slt', row.get('DID'))}",
        model=real(str(row.get("Model", ""))),
        size_bytes=_bytes(str(row.get("Size", ""))),
        media=kind if kind in ("hdd", "ssd") else None,
        protocol={"NVME": "NVMe"}.get(str(row.get("Intf", "")).upper(), real(str(row.get("Intf", "")))),
        rotational={"hdd": True, "ssd": False}.get(kind),
        controller=controller,
        bay=real(str(row.get("EID:Slt", ""))),
        health="ok" if state in _GOOD_STATES else ("critical" if state in ("UBad", "Offln", "Failed") else None),
    )


def _storcli_address(word: str) -> str | None:
    """`00:3d:00:00` (domain, bus, device, function) as the kernel writes it."""
    parts = word.split(":")
    if len(parts) != 4 or not all(re.fullmatch(r"[0-9a-fA-F]+", part) for part in parts):
        return None
    domain, bus, device, function = (int(part, 16) for part in parts)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def parse_mvcli_hba(words: str) -> Told:
    """`mvcli info -o hba`: Marvell's boot controllers (Dell BOSS)."""
    found = []
    for block in _blocks(words, "Adapter ID"):
        product = block.get("Product") or "boot controller"
        found += [
            FirmwareVersion(name=f"Marvell {product}{suffix}", version=version)
            for key, suffix in (
                ("Firmware version", ""),
                ("BIOS version", " BIOS"),
                ("Boot loader version", " loader"),
            )
            if (version := real(block.get(key)))
        ]
    return Told(firmware=tuple(found))


def parse_mvcli_drives(words: str) -> Told:
    """`mvcli info -o pd`: the drives behind it."""
    return Told(
        drives=tuple(
            Drive(
                name=f"Marvell {block.get('Adapter', '0')}:{block.get('PD ID', '?')}",
                serial=real(block.get("Serial")),
                model=real(block.get("model")),
                size_bytes=_kib(block.get("Size")),
                media="ssd" if block.get("SSD Type", "").upper() == "SSD" else None,
                protocol="SATA" if "SATA" in block.get("Type", "") else None,
                rotational=False if block.get("SSD Type", "").upper() == "SSD" else None,
                controller=f"Marvell adapter {block.get('Adapter', '0')}",
                bay=real(block.get("Linked at")),
                firmware=real(block.get("Firmware version")),
            )
            for block in _blocks(words, "Adapter")
        )
    )


def parse_mvcli_volumes(words: str) -> Mapping[str, str]:
    """`mvcli info -o vd`: each volume's state by its name."""
    return {
        block.get("name") or block.get("id", ""): block.get("status", "")
        for block in _blocks(words, "id")
        if block.get("status")
    }


def parse_msecli(words: str) -> Told:
    """`msecli -L`: Micron's drives, with their health in words."""
    return Told(
        drives=tuple(
            Drive(
                name=block["Device Name"].removeprefix("/dev/"),
                serial=real(block.get("Serial No")),
                model=real(block.get("Model No", "").replace("_", " ")),
                firmware=real(block.get("FW-Rev")),
                health=_msecli_health(block.get("Drive Status", "")),
            )
            for block in _blocks(words, "Device Name")
        )
    )


def _msecli_health(word: str) -> str | None:
    lowered = word.lower()
    return None if not lowered else ("ok" if "good" in lowered else "warning")


def parse_dsu(words: str) -> Told:
    """`dsu --inventory`: Dell's list of everything that has firmware; its own applications are left out."""
    found = []
    for line in words.splitlines():
        match = _DSU.match(line.strip())
        if match is not None and ". APAC," not in line:
            found.append(FirmwareVersion(name=" ".join(match["name"].split()), version=match["version"]))
    return Told(firmware=tuple(found))


def parse_ipmicfg(words: str) -> Told:
    """`ipmicfg -summary`: Supermicro's BMC, BIOS and CPLD."""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in words.splitlines())}
    names = (("Firmware Revision", "BMC"), ("BIOS Version", "BIOS"), ("CPLD Version", "CPLD"))
    return Told(
        firmware=tuple(
            FirmwareVersion(name=name, version=version) for key, name in names if (version := real(facts.get(key)))
        )
    )


def parse_mlxup(words: str) -> Told:
    """`mlxup --query`: NVIDIA's (Mellanox') NICs."""
    found = []
    for block in re.split(r"^Device #\d+:", words, flags=re.MULTILINE)[1:]:
        part = re.search(r"^\s*Part Number:\s*(\S+)", block, re.MULTILINE)
        address = re.search(r"^\s*PCI Device Name:\s*(\S+)", block, re.MULTILINE)
        name = " ".join(match[1] for match in (part, address) if match is not None) or "Mellanox NIC"
        for key, suffix in (("FW", ""), ("PXE", " PXE"), ("UEFI", " UEFI")):
            version = re.search(rf"^\s*{key}\s+(\d\S*)", block, re.MULTILINE)
            if version is not None:
                found.append(FirmwareVersion(name=name + suffix, version=version[1]))
    return Told(firmware=tuple(found))


TOOLS = (
    Tool("storcli64", ("/call", "show", "J"), parse_storcli),
    Tool("mvcli", ("info", "-o", "hba"), parse_mvcli_hba),
    Tool("mvcli", ("info", "-o", "pd"), parse_mvcli_drives),
    Tool("msecli", ("-L",), parse_msecli),
    Tool("dsu", ("--inventory",), parse_dsu),
    Tool("ipmicfg", ("-summary",), parse_ipmicfg),
    Tool("mlxup", ("--query",), parse_mlxup),
)
"""The programs that are asked, in this order."""


def _blocks(words: str, first: str) -> Iterator[dict[str, str]]:
    """Groups of `key: value` lines, each beginning with the key `first`."""
    current: dict[str, str] = {}
    for line in words.splitlines():
        key, separator, value = line.partition(":")
        key = key.strip()
        if not separator:
            continue
        if key == first:
            if current:
                yield current
            current = {}
        elif not current:
            continue
        current.setdefault(key, value.strip())
    if current:
        yield current


def _mappings(value: object, key: str) -> list[Mapping[str, object]]:
    listed = value.get(key) if isinstance(value, Mapping) else None
    return [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []


def _bytes(word: str) -> int | None:
    """`7.277 TB`, in powers of 1024 as Broadcom counts."""
    match = _SIZE.search(word)
    return None if match is None else int(float(match[1]) * _UNITS[match[2].upper()])


def _kib(word: str | None) -> int | None:
    match = re.match(r"(\d+)\s*K\b", word or "")
    return None if match is None else int(match[1]) * 1024
