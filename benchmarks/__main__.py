"""`python -m benchmarks [NAME …]`: runs the named benchmarks, or all; one JSON line per figure."""

import sys
from importlib import import_module

from benchmarks import Figure

MODULES = {
    "driver.getpower": "benchmarks.driver_getpower",
    "sweep.redfish": "benchmarks.sweep_redfish",
    "sweep.ipmi": "benchmarks.sweep_ipmi",
    "gateway.idle_kib_per_agent": "benchmarks.gateway_idle",
    "commands.per_second": "benchmarks.commands_rate",
    "engine.steps": "benchmarks.engine_steps",
}


def main(wanted: list[str]) -> int:
    """Runs what matches a wanted name or its beginning. Returns 2 when nothing does."""

    def asked(name: str) -> bool:
        return not wanted or any(name.startswith(word) or word.startswith(name) for word in wanted)

    chosen = [module for name, module in MODULES.items() if asked(name)]
    if not chosen:
        print(f"no benchmark is named {' '.join(wanted)}: there are {', '.join(MODULES)}", file=sys.stderr)
        return 2
    for module in chosen:
        figures: list[Figure] = import_module(module).run()
        for figure in figures:
            sys.stdout.buffer.write(figure.line() + b"\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
