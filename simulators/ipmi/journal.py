"""What a BMC was asked and how it answered, with no secret in it."""

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from simulators.ipmi.constants import NetFn
from simulators.ipmi.faults import Phase

# Commands whose data holds a secret, with the bytes that may be kept: Set User Password,
# Set Channel Security Keys, Set LAN Configuration Parameters 16 (the community string).
_SECRET_DATA: dict[tuple[int, int], int] = {(NetFn.APP, 0x47): 2, (NetFn.APP, 0x56): 3, (NetFn.TRANSPORT, 0x01): 2}


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One packet that the BMC understood.

    `at` is in seconds of the BMC's monotonic clock. `outcome` is the completion code of a command or the
    status of a set-up step, None where nothing was answered. `executed` tells whether the command was carried
    out; `fault` names the effect of the rule that met it.
    """

    at: float
    phase: Phase
    peer: tuple[str, int]
    session_id: int = 0
    user: str = ""
    netfn: int | None = None
    cmd: int | None = None
    data: bytes = b""
    outcome: int | None = None
    executed: bool = False
    fault: str = ""


class Journal:
    """The newest entries, at most `limit` of them; `on_entry` is called with each as it is written."""

    def __init__(self, limit: int = 10_000) -> None:
        self._entries: deque[JournalEntry] = deque(maxlen=limit)
        self.on_entry: list[Callable[[JournalEntry], None]] = []

    def __iter__(self) -> Iterator[JournalEntry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def write(self, entry: JournalEntry) -> None:
        """Keep an entry and tell the listeners."""
        self._entries.append(entry)
        for listener in tuple(self.on_entry):
            listener(entry)

    def clear(self) -> None:
        """Forget every entry."""
        self._entries.clear()

    def commands(self, netfn: int | None = None, cmd: int | None = None) -> list[JournalEntry]:
        """The commands received, of one kind where it is named; faults and refusals included."""
        return [
            entry
            for entry in self._entries
            if entry.netfn is not None
            and (netfn is None or entry.netfn == netfn)
            and (cmd is None or entry.cmd == cmd)
        ]

    def executed(self, netfn: int, cmd: int) -> list[JournalEntry]:
        """The commands of one kind that were carried out."""
        return [entry for entry in self.commands(netfn, cmd) if entry.executed]

    def phase(self, phase: Phase) -> list[JournalEntry]:
        """The entries of one phase."""
        return [entry for entry in self._entries if entry.phase is phase]


def without_secrets(netfn: int, cmd: int, data: bytes) -> bytes:
    """Command data as the journal may keep it: secret bytes are cut off."""
    kept = _SECRET_DATA.get((netfn, cmd))
    if kept is None or (netfn == NetFn.TRANSPORT and data[1:2] != b"\x10"):
        return data
    return data[:kept]
