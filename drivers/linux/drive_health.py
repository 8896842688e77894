"""Drives as smartctl and the NVMe drives' own log tell of them: health, firmware, names. Pure but for the asking."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from drivers.linux import nvme
from drivers.linux.disks import Disk
from drivers.linux.host import Host
from drivers.linux.words import real
from protocol.errors import OperationError

__all__ = ["DriveFacts", "ask_drive", "parse_nvme_health", "parse_smartctl"]

_SECONDS = 30.0
_HEALTH_LOG = nvme.AdminCommand(0x02, 0xFFFFFFFF, cdw10=0x02 | (512 // 4 - 1) << 16, size=512)
_EXHAUSTED = 100
_FAILING = 1 << 3
"""Bit 3 of smartctl's exit code: the drive says of itself that it is failing (smartctl(8), EXIT STATUS)."""


@dataclass(frozen=True, slots=True)
class DriveFacts:
    model: str | None = None
    serial: str | None = None
    wwn: str | None = None
    firmware: str | None = None
    size_bytes: int | None = None
    rotational: bool | None = None
    protocol: str | None = None
    health: str | None = None


async def ask_drive(host: Host, disk: Disk) -> DriveFacts:
    """What can be learnt without waking anything up; nothing where nobody answers."""
    if host.has("smartctl"):
        try:
            told = await host.run("smartctl", "-j", "-i", "-H", disk.path, timeout=_SECONDS)
            return parse_smartctl(json.loads(told.out))
        except (OperationError, ValueError):
            return DriveFacts()
    if disk.transport == "nvme":
        try:
            return DriveFacts(health=parse_nvme_health(await asyncio.to_thread(nvme.submit, disk.path, _HEALTH_LOG)))
        except OperationError:
            return DriveFacts()
    return DriveFacts()


def parse_nvme_health(log: bytes) -> str | None:
    """ok, warning (worn out, or a spare or temperature limit is passed) or critical (it has become read-only or
    unreliable), by the SMART log page (NVM Express 2.0, figure 207)."""
    if len(log) < 6:
        return None
    if log[0] & 0b1100:
        return "critical"
    return "warning" if log[0] & 0b10011 or log[5] >= _EXHAUSTED else "ok"


def parse_smartctl(told: object) -> DriveFacts:
    """smartctl's JSON, of ATA, SAS and NVMe drives, also behind a RAID controller."""
    if not isinstance(told, Mapping):
        return DriveFacts()
    passed = _dig(told, "smart_status", "passed")
    status = _dig(told, "smartctl", "exit_status")
    failing = isinstance(status, int) and bool(status & _FAILING)
    turns = _dig(told, "rotation_rate")
    protocol = _text(told, "device", "protocol")
    model = _text(told, "model_name") or _text(told, "scsi_model_name") or _text(told, "product")
    return DriveFacts(
        model=model,
        serial=_text(told, "serial_number"),
        wwn=_wwn(told),
        firmware=_text(told, "firmware_version") or _text(told, "revision"),
        size_bytes=_whole(told, "user_capacity", "bytes"),
        rotational=turns > 0 if isinstance(turns, int) else (False if protocol == "NVMe" else None),
        protocol={"ATA": "SATA", "SCSI": "SAS", "NVMe": "NVMe"}.get(protocol or ""),
        health=None if not isinstance(passed, bool) else ("ok" if passed and not failing else "critical"),
    )


def _wwn(told: Mapping[str, object]) -> str | None:
    naa, oui, own = (_whole(told, "wwn", part) for part in ("naa", "oui", "id"))
    if naa is not None and oui is not None and own is not None:
        return f"0x{naa << 60 | oui << 36 | own:016x}"
    listed = _dig(told, "nvme_namespaces")
    first = listed[0] if isinstance(listed, list) and listed else None
    vendor, extension = _dig(first, "eui64", "oui"), _dig(first, "eui64", "ext_id")
    # Zeros stand for none.
    if isinstance(vendor, int) and isinstance(extension, int) and (vendor or extension):
        return f"eui.{vendor:06x}{extension:010x}"
    return None


def _dig(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: object, *keys: str) -> str | None:
    word = _dig(value, *keys)
    return real(word) if isinstance(word, str) else None


def _whole(value: object, *keys: str) -> int | None:
    found = _dig(value, *keys)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None
