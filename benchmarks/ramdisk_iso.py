"""The bootable image's size, as released: well compressed, without the firmware that only some NICs want.

It is built for the present sources, once, and kept below `build/`; a build takes a minute.
"""

from pathlib import Path

import msgspec

from benchmarks import Figure
from ramdisk.image.architectures import ARCHITECTURES
from ramdisk.image.build import BuildOptions, Description, built

__all__ = ["image"]

LIMIT_MB = 120.0
_WORK = Path(__file__).resolve().parents[1] / "build" / "ramdisk"


def image() -> tuple[Path, Description]:
    """The medium, and what is said of it. Raises BuildError."""
    description = built(_WORK / "images", _WORK, BuildOptions(ARCHITECTURES["x86_64"], reuse=True), lambda _: None)
    return description.with_suffix(""), msgspec.json.decode(description.read_bytes(), type=Description)


def run() -> list[Figure]:
    iso, facts = image()
    size = facts.iso_size / 1e6
    initrd = iso.with_name(facts.initrd).stat().st_size / 1e6
    note = f"of it the initial ramdisk {initrd:.1f} MB; limit {LIMIT_MB:g} MB"
    return [Figure("ramdisk.iso_mb", size, "MB", f"the limit, {LIMIT_MB:g} MB", LIMIT_MB, size / LIMIT_MB, note)]
