"""The journal of a running simulator as a file, for programs that are not in its process: one JSON object a line.

Each line names its BMC (`bmc`: host:port). A line of a command has `netfn`, `cmd`, `data` (hexadecimal, without
secrets), `outcome` and `executed`, as `JournalEntry` tells them. A line of the machine has `event` (`start` first,
then the names of `PowerEvent`) and `powered`.
"""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.faults import Phase
from simulators.ipmi.journal import JournalEntry
from simulators.ipmi.machine import PowerEvent

__all__ = ["JournalFile"]


class JournalFile:
    """Appends to the file while it is open, and each line is there to read at once. Raises OSError when opened."""

    def __init__(self, file: Path) -> None:
        self._stream = file.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()

    def follow(self, bmc: IpmiBmc, name: str) -> None:
        """Writes down from now on what reaches this BMC and what its machine does."""

        def command(entry: JournalEntry) -> None:
            if entry.phase is Phase.COMMAND:
                self._write(
                    bmc=name,
                    netfn=entry.netfn,
                    cmd=entry.cmd,
                    data=entry.data.hex(),
                    outcome=entry.outcome,
                    executed=entry.executed,
                )

        def power(event: PowerEvent) -> None:
            self._write(bmc=name, event=event.name.lower(), powered=bmc.machine.powered)

        self._write(bmc=name, event="start", powered=bmc.machine.powered)
        bmc.journal.on_entry.append(command)
        bmc.machine.listeners.append(power)

    def _write(self, **line: Any) -> None:
        self._stream.write(msgspec.json.encode(line) + b"\n")
