"""What sensor types and event offsets are called, and how grave they are.

Source: IPMI 2.0 revision 1.1, tables 42-1 (event/reading types), 42-2 (generic offsets), 42-3 (sensor types). The
severities are this product's: the tables give them for a few offsets only.
"""

from typing import Final

from protocol.shapes.management import Health

__all__ = ["SENSOR_TYPES", "THRESHOLD", "event_text", "sensor_type_name", "state_health"]

THRESHOLD: Final = 0x01
"""The event/reading type of sensors that compare a number with thresholds."""
SENSOR_SPECIFIC: Final = 0x6F

_OK, _WARNING, _CRITICAL = Health.OK, Health.WARNING, Health.CRITICAL

SENSOR_TYPES: Final[dict[int, str]] = {
    0x01: "temperature",
    0x02: "voltage",
    0x03: "current",
    0x04: "fan",
    0x05: "physical security",
    0x06: "platform security",
    0x07: "processor",
    0x08: "power supply",
    0x09: "power unit",
    0x0A: "cooling device",
    0x0B: "other units",
    0x0C: "memory",
    0x0D: "drive bay",
    0x0E: "POST memory resize",
    0x0F: "system firmware progress",
    0x10: "event log",
    0x11: "watchdog",
    0x12: "system event",
    0x13: "critical interrupt",
    0x14: "button",
    0x15: "module or board",
    0x16: "microcontroller",
    0x17: "add-in card",
    0x18: "chassis",
    0x19: "chip set",
    0x1A: "other FRU",
    0x1B: "cable",
    0x1C: "terminator",
    0x1D: "system boot",
    0x1E: "boot error",
    0x1F: "operating system boot",
    0x20: "operating system stop",
    0x21: "slot or connector",
    0x22: "system ACPI power state",
    0x23: "watchdog",
    0x24: "platform alert",
    0x25: "entity presence",
    0x26: "monitor",
    0x27: "LAN",
    0x28: "management subsystem",
    0x29: "battery",
    0x2A: "session audit",
    0x2B: "version change",
    0x2C: "FRU state",
}

_THRESHOLD_EVENTS: Final = {
    0x0: ("below the lower warning threshold", _WARNING),
    0x1: ("rising through the lower warning threshold", _OK),
    0x2: ("below the lower critical threshold", _CRITICAL),
    0x3: ("rising through the lower critical threshold", _WARNING),
    0x4: ("below the lower non-recoverable threshold", _CRITICAL),
    0x5: ("rising through the lower non-recoverable threshold", _CRITICAL),
    0x6: ("falling through the upper warning threshold", _OK),
    0x7: ("above the upper warning threshold", _WARNING),
    0x8: ("falling through the upper critical threshold", _WARNING),
    0x9: ("above the upper critical threshold", _CRITICAL),
    0xA: ("falling through the upper non-recoverable threshold", _CRITICAL),
    0xB: ("above the upper non-recoverable threshold", _CRITICAL),
}
_GENERIC: Final[dict[int, tuple[tuple[str, Health], ...]]] = {
    0x02: (("idle", _OK), ("active", _OK), ("busy", _OK)),
    0x03: (("deasserted", _OK), ("asserted", _OK)),
    0x04: (("no failure predicted", _OK), ("failure predicted", _WARNING)),
    0x05: (("limit not exceeded", _OK), ("limit exceeded", _WARNING)),
    0x06: (("performance met", _OK), ("performance lags", _WARNING)),
    0x07: (
        ("OK", _OK),
        ("non-critical from OK", _WARNING),
        ("critical from less severe", _CRITICAL),
        ("non-recoverable from less severe", _CRITICAL),
        ("non-critical from more severe", _WARNING),
        ("critical from non-recoverable", _CRITICAL),
        ("non-recoverable", _CRITICAL),
        ("monitor", _OK),
        ("informational", _OK),
    ),
    0x08: (("absent", _OK), ("present", _OK)),
    0x09: (("disabled", _OK), ("enabled", _OK)),
    0x0A: (
        ("running", _OK),
        ("in test", _OK),
        ("power off", _OK),
        ("on line", _OK),
        ("off line", _OK),
        ("off duty", _OK),
        ("degraded", _WARNING),
        ("power save", _OK),
        ("install error", _WARNING),
    ),
    0x0B: (
        ("fully redundant", _OK),
        ("redundancy lost", _CRITICAL),
        ("redundancy degraded", _WARNING),
        ("not redundant from redundant", _WARNING),
        ("not redundant, resources enough", _WARNING),
        ("not redundant, resources too few", _CRITICAL),
        ("redundancy degraded from full", _WARNING),
        ("redundancy degraded from none", _WARNING),
    ),
    0x0C: (("D0", _OK), ("D1", _OK), ("D2", _OK), ("D3", _OK)),
}
_SPECIFIC: Final[dict[int, dict[int, tuple[str, Health]]]] = {
    0x05: {0: ("chassis opened", _WARNING), 1: ("drive bay opened", _WARNING), 4: ("LAN lost", _WARNING)},
    0x06: {0: ("secure mode violated", _WARNING), 4: ("wrong out-of-band password", _WARNING)},
    0x07: {
        0: ("internal error", _CRITICAL),
        1: ("thermal trip", _CRITICAL),
        2: ("self test failed", _CRITICAL),
        3: ("hang in POST", _CRITICAL),
        4: ("start-up failed", _CRITICAL),
        5: ("configuration error", _CRITICAL),
        6: ("uncorrectable CPU complex error", _CRITICAL),
        7: ("present", _OK),
        8: ("disabled", _WARNING),
        10: ("throttled", _WARNING),
        11: ("machine check", _CRITICAL),
        12: ("correctable machine check", _WARNING),
    },
    0x08: {
        0: ("present", _OK),
        1: ("failed", _CRITICAL),
        2: ("failure predicted", _WARNING),
        3: ("input lost", _CRITICAL),
        4: ("input lost or out of range", _CRITICAL),
        5: ("input out of range", _WARNING),
        6: ("configuration error", _WARNING),
        7: ("standby", _OK),
    },
    0x09: {
        0: ("powered off", _OK),
        1: ("power cycle", _OK),
        2: ("240 VA power down", _CRITICAL),
        3: ("interlock power down", _WARNING),
        4: ("input lost", _CRITICAL),
        5: ("soft power control failed", _CRITICAL),
        6: ("failed", _CRITICAL),
        7: ("failure predicted", _WARNING),
    },
    0x0C: {
        0: ("correctable ECC error", _WARNING),
        1: ("uncorrectable ECC error", _CRITICAL),
        2: ("parity error", _CRITICAL),
        3: ("scrub failed", _CRITICAL),
        4: ("device disabled", _WARNING),
        5: ("correctable error log full", _WARNING),
        6: ("present", _OK),
        7: ("configuration error", _WARNING),
        8: ("spare", _OK),
        9: ("throttled", _WARNING),
        10: ("critical overtemperature", _CRITICAL),
    },
    0x0D: {
        0: ("drive present", _OK),
        1: ("drive fault", _CRITICAL),
        2: ("failure predicted", _WARNING),
        3: ("hot spare", _OK),
        4: ("parity check", _OK),
        5: ("in a critical array", _WARNING),
        6: ("in a failed array", _CRITICAL),
        7: ("rebuilding", _OK),
        8: ("rebuild aborted", _WARNING),
    },
    0x0F: {0: ("firmware error", _CRITICAL), 1: ("firmware hang", _CRITICAL), 2: ("firmware progress", _OK)},
    0x10: {
        0: ("correctable memory error logging disabled", _WARNING),
        1: ("logging of an event type disabled", _OK),
        2: ("log cleared", _OK),
        3: ("all logging disabled", _WARNING),
        4: ("log full", _WARNING),
        5: ("log almost full", _WARNING),
    },
    0x12: {0: ("reconfigured", _OK), 1: ("OEM system boot", _OK), 2: ("unknown system hardware failure", _CRITICAL)},
    0x13: {
        0: ("front panel NMI", _WARNING),
        1: ("bus timeout", _CRITICAL),
        2: ("I/O check NMI", _CRITICAL),
        3: ("software NMI", _WARNING),
        4: ("PCI PERR", _CRITICAL),
        5: ("PCI SERR", _CRITICAL),
        7: ("correctable bus error", _WARNING),
        8: ("uncorrectable bus error", _CRITICAL),
        9: ("fatal NMI", _CRITICAL),
        10: ("fatal bus error", _CRITICAL),
        11: ("degraded bus", _WARNING),
    },
    0x14: {0: ("power button", _OK), 1: ("sleep button", _OK), 2: ("reset button", _OK)},
    0x1D: {
        0: ("power up", _OK),
        1: ("hard reset", _OK),
        2: ("warm reset", _OK),
        3: ("PXE boot requested", _OK),
        7: ("system restart", _OK),
    },
    0x1E: {
        0: ("no bootable media", _WARNING),
        1: ("no bootable diskette", _WARNING),
        2: ("no PXE server found", _WARNING),
        3: ("invalid boot sector", _WARNING),
        4: ("time-out of the boot choice", _WARNING),
    },
    0x20: {
        0: ("stopped while loading", _CRITICAL),
        1: ("stopped while running", _CRITICAL),
        2: ("graceful stop", _OK),
        3: ("graceful shutdown", _OK),
    },
    0x21: {0: ("fault", _CRITICAL), 2: ("device installed", _OK), 5: ("power off", _OK)},
    0x22: {0: ("S0/G0 working", _OK), 5: ("S5/G2 soft-off", _OK), 6: ("S4/S5 soft-off", _OK), 11: ("legacy on", _OK)},
    0x23: {
        0: ("expired, no action", _WARNING),
        1: ("hard reset", _CRITICAL),
        2: ("power down", _CRITICAL),
        3: ("power cycle", _CRITICAL),
        8: ("interrupt", _WARNING),
    },
    0x25: {0: ("present", _OK), 1: ("absent", _OK), 2: ("disabled", _OK)},
    0x28: {
        0: ("sensor access degraded", _WARNING),
        1: ("controller access degraded", _WARNING),
        2: ("controller off line", _WARNING),
        4: ("sensor failed", _WARNING),
        5: ("FRU failed", _WARNING),
    },
    0x29: {0: ("low", _WARNING), 1: ("failed", _CRITICAL), 2: ("present", _OK)},
}


def sensor_type_name(number: int) -> str:
    """The kind of thing a sensor watches."""
    return SENSOR_TYPES.get(number) or (f"OEM type {number:#04x}" if number >= 0xC0 else f"type {number:#04x}")


def event_text(sensor_type: int, event_type: int, offset: int) -> tuple[str, Health]:
    """An asserted event in words, and how grave it is; UNKNOWN for what the tables do not name."""
    if event_type == THRESHOLD:
        found = _THRESHOLD_EVENTS.get(offset)
    elif event_type == SENSOR_SPECIFIC:
        found = _SPECIFIC.get(sensor_type, {}).get(offset)
    else:
        states = _GENERIC.get(event_type, ())
        found = states[offset] if offset < len(states) else None
    return found or (f"event {offset:#x} of type {event_type:#04x}", Health.UNKNOWN)


def state_health(sensor_type: int, event_type: int, states: int) -> tuple[Health, str | None]:
    """The gravest of a discrete sensor's asserted states (bit mask of offsets), and their words."""
    words, worst = [], Health.OK
    for offset in range(15):
        if states >> offset & 1:
            text, health = event_text(sensor_type, event_type, offset)
            words.append(text)
            worst = max(worst, health, key=_GRAVITY.index)
    return worst, ", ".join(words) or None


_GRAVITY: Final = (Health.OK, Health.UNKNOWN, Health.WARNING, Health.CRITICAL)
