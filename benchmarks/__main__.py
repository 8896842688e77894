"""`python -m benchmarks [NAME …]`: runs the named benchmarks, or all; one JSON line per figure.

A benchmark that fails is told on standard error, the others run all the same, and the exit code is 1.
"""

import signal
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module

from benchmarks import Figure

MODULES = {
    "driver.getpower": "benchmarks.driver_getpower",
    "bmc.requests": "benchmarks.bmc_requests",
    "sweep.redfish": "benchmarks.sweep_redfish",
    "sweep.ipmi": "benchmarks.sweep_ipmi",
    "sweep.ironic": "benchmarks.sweep_ironic",
    "poll.fleet": "benchmarks.poll_fleet",
    "firmware.push.rss_mib": "benchmarks.firmware_push",
    "image.write": "benchmarks.image_write",
    "image.fetch": "benchmarks.image_fetch",
    "ramdisk.iso_mb": "benchmarks.ramdisk_iso",
    "ramdisk.boot": "benchmarks.ramdisk_boot",
    "gateway.idle_kib_per_agent": "benchmarks.gateway_idle",
    "gateway.reconnect_storm": "benchmarks.gateway_storm",
    "commands.per_second": "benchmarks.commands_rate",
    "engine.steps": "benchmarks.engine_steps",
    "engine.history": "benchmarks.engine_history",
    "engine.fleet": "benchmarks.engine_fleet",
    "engine.takeover_s": "benchmarks.engine_takeover",
    "engine.ironic_deploys": "benchmarks.engine_ironic",
}


def main(wanted: list[str]) -> int:
    """Runs what matches a wanted name or its beginning. Returns 1 when one of them failed, 2 when nothing matches."""

    def asked(name: str) -> bool:
        return not wanted or any(name.startswith(word) or word.startswith(name) for word in wanted)

    chosen = {name: module for name, module in MODULES.items() if asked(name)}
    if not chosen:
        print(f"no benchmark is named {' '.join(wanted)}: there are {', '.join(MODULES)}", file=sys.stderr)
        return 2
    failed = [name for name, module in chosen.items() if not _succeeds(name, module)]
    if failed:
        print(f"{len(failed)} of {len(chosen)} benchmarks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _succeeds(name: str, module: str) -> bool:
    """Prints each figure as soon as it is measured."""
    try:
        figures: Iterable[Figure] = import_module(module).run()
        for figure in figures:
            sys.stdout.buffer.write(figure.line() + b"\n")
            sys.stdout.flush()
    except Exception:
        print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return False
    return True


def _end(*_: object) -> None:
    """So that what a benchmark has started ends with it."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))
