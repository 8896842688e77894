"""From an inventory to labels, so that a profile's `when` can ask for what is in a machine. Pure.

| label | of |
|---|---|
| `system.vendor`, `system.model`, `system.serial`, `system.sku` | the machine |
| `cpu.vendor`, `cpu.model`, `cpu.architecture`, `cpu.count`, `cpu.cores`, `cpu.threads` | its processors |
| `memory.gib` | its memory, in whole GiB |
| `disk.count`, `disk.ssd`, `disk.hdd`, `disk.nvme` | how many drives there are |
| `disk.smallest.gib`, `disk.largest.gib`, `disk.total.gib` | their sizes |
| `raid.hardware` | true where there is a RAID controller |
| `nic.count`, `nic.up`, `nic.gbps`, `nic.infiniband` | NICs, those with a link, the fastest link |
| `gpu.count`, `gpu.vendor`, `gpu.model`, `mig.capable`, `nvswitch` | accelerators |
| `tpm` | the kind of its trusted module |

A label that says no is not there at all: `!gpu.count` holds on a machine without one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from protocol.shapes.inspect import Inventory, Processor

__all__ = ["labels_of_inventory", "with_found"]

_GIB = 1 << 30
_LONGEST = 255
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f=!&|()\"']+")
"""What no label's value may hold, or no `when` could ask for."""
_NOISE = re.compile(r"\((?:r|tm|c)\)|®|™|\b(?:corporation|incorporated|inc|corp|ltd|co)\b\.?,?", re.IGNORECASE)
_CPU_NOISE = re.compile(r"\bCPU\b|\bprocessor\b|\b\d+-core\b|@.*$|\b\d+(?:\.\d+)?\s*GHz\b", re.IGNORECASE)
_GPU_PARTS = re.compile(r"\b(?:MI\d{2,3}[A-Z]?|[A-Z]{1,3}\d{1,3}0[A-Z]?|[ABHLTPV]\d{1,3}[A-Z]{0,2})\b")
"""A data centre's own names: H100, GH200, A30, L40S, T4, MI300X."""
_MULTI_INSTANCE = re.compile(r"^(?:A30|A100|H20|H100|H200|H800|A800|GH200|B100|B200|B300|GB200|GB300)")
_RAID_CONTROLLER = re.compile(r"raid|\bperc\b|smart ?array|\bBOSS\b", re.IGNORECASE)
_VENDORS = {"genuineintel": "Intel", "authenticamd": "AMD", "advanced micro devices": "AMD", "0x10de": "NVIDIA"}
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "system": ("system.",),
    "processors": ("cpu.", "gpu.", "mig."),
    "memory": ("memory.",),
    "drives": ("disk.",),
    "nics": ("nic.",),
    "pci": ("raid.", "nvswitch"),
    "trusted_modules": ("tpm",),
}
"""By the inventory's part, the beginnings of the labels that follow from it."""


def labels_of_inventory(inventory: Inventory) -> dict[str, str]:
    """Every label that the inventory gives a reason for."""
    raw: dict[str, object] = {}
    for part in (_system, _processors, _memory, _drives, _nics, _accelerators, _pci):
        raw |= part(inventory)
    raw["tpm"] = next((module.kind or "true" for module in inventory.trusted_modules), None)
    return {name: text for name, value in raw.items() if (text := _text(value))}


def with_found(known: Mapping[str, str], inventory: Inventory) -> dict[str, str]:
    """What is known after this inventory: its own labels, and the earlier ones of what it does not wholly tell.

    A BMC over IPMI tells no drives: what the ramdisk has found of them before is still true.
    """
    found = labels_of_inventory(inventory)
    partial = [prefix for part in _GROUPS if part in inventory.incomplete for prefix in _GROUPS[part]]
    kept = {name: value for name, value in known.items() if name.startswith(tuple(partial))}
    return kept | found


def _system(inventory: Inventory) -> dict[str, object]:
    system = inventory.system
    return {
        "system.vendor": _named(system.vendor),
        "system.model": system.model,
        "system.serial": system.serial,
        "system.sku": system.sku,
    }


def _processors(inventory: Inventory) -> dict[str, object]:
    cpus = [processor for processor in inventory.processors if processor.kind == "cpu"]
    system = inventory.system
    return {
        "cpu.vendor": _named(_first(cpu.vendor for cpu in cpus)),
        "cpu.model": _cpu_model(_first(cpu.model for cpu in cpus)),
        "cpu.architecture": _first(cpu.architecture for cpu in cpus),
        "cpu.count": len(cpus) or system.processor_count,
        "cpu.cores": sum(cpu.cores or 0 for cpu in cpus) or system.core_count,
        "cpu.threads": sum(cpu.threads or 0 for cpu in cpus) or system.thread_count,
    }


def _memory(inventory: Inventory) -> dict[str, object]:
    modules = sum(module.size_mib or 0 for module in inventory.memory)
    return {"memory.gib": round((modules or inventory.system.memory_mib or 0) / 1024)}


def _drives(inventory: Inventory) -> dict[str, object]:
    drives = inventory.drives
    sizes = [drive.size_bytes for drive in drives if drive.size_bytes]
    media = Counter(drive.media for drive in drives)
    return {
        "disk.count": len(drives),
        "disk.ssd": media["ssd"],
        "disk.hdd": media["hdd"] + media["smr"],
        "disk.nvme": sum((drive.protocol or "").casefold() == "nvme" for drive in drives),
        "disk.smallest.gib": min(sizes, default=0) // _GIB,
        "disk.largest.gib": max(sizes, default=0) // _GIB,
        "disk.total.gib": sum(sizes) // _GIB,
    }


def _nics(inventory: Inventory) -> dict[str, object]:
    linked = [nic for nic in inventory.nics if nic.link == "up"]
    return {
        "nic.count": len(inventory.nics),
        "nic.up": len(linked),
        "nic.gbps": max((nic.speed_mbps or 0 for nic in linked), default=0) // 1000,
        "nic.infiniband": any(nic.technology == "infiniband" for nic in inventory.nics),
    }


def _accelerators(inventory: Inventory) -> dict[str, object]:
    found = [processor for processor in inventory.processors if processor.kind in ("gpu", "accelerator")]
    models = [model for model in (_gpu_model(processor) for processor in found) if model]
    model = Counter(models).most_common(1)[0][0] if models else None
    return {
        "gpu.count": len(found),
        "gpu.vendor": _named(_first(processor.vendor for processor in found)),
        "gpu.model": model,
        "mig.capable": model is not None and _MULTI_INSTANCE.match(model) is not None,
    }


def _pci(inventory: Inventory) -> dict[str, object]:
    names = [f"{device.name} {device.model or ''}" for device in inventory.pci]
    controllers = [*names, *(drive.controller or "" for drive in inventory.drives)]
    return {
        "raid.hardware": any(_RAID_CONTROLLER.search(name) for name in controllers),
        "nvswitch": any("nvswitch" in name.casefold() for name in names),
    }


def _cpu_model(model: str | None) -> str | None:
    """`EPYC 7763`, `Xeon Gold 6354`: without marks, maker, clock and filling words."""
    if model is None:
        return None
    words = _CPU_NOISE.sub(" ", _NOISE.sub(" ", model))
    return re.sub(r"\b(?:intel|amd)\b", " ", words, flags=re.IGNORECASE) if words.strip() else model


def _gpu_model(processor: Processor) -> str | None:
    """The product's short name where one is recognised: a chip's own name comes before it, in front of brackets.

    Some BMCs put a part number where the model belongs, and the product into the name of the slot.
    """
    bracketed = re.findall(r"\[([^\]]+)\]", processor.model or "")
    for words in (*bracketed, processor.model, processor.socket):
        match = _GPU_PARTS.search(words or "")
        if match is not None:
            return match[0]
    return _without_maker(bracketed[0] if bracketed else processor.model)


def _without_maker(model: str | None) -> str | None:
    if model is None:
        return None
    return re.sub(r"\b(?:nvidia|amd|intel)\b", " ", _NOISE.sub(" ", model), flags=re.IGNORECASE)


def _named(vendor: str | None) -> str | None:
    """A maker under one name, however its firmware writes it."""
    if vendor is None:
        return None
    plain = " ".join(_NOISE.sub(" ", vendor).split()).rstrip(".,")
    for word, name in _VENDORS.items():
        if word in plain.casefold():
            return name
    return {"nvidia": "NVIDIA", "intel": "Intel", "amd": "AMD"}.get(plain.casefold(), plain)


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value), None)


def _text(value: object) -> str:
    """The label's value, or nothing for what says no."""
    if value is None or value is False or value == 0:
        return ""
    if value is True:
        return "true"
    return " ".join(_FORBIDDEN.sub(" ", str(value)).split())[:_LONGEST].strip()
