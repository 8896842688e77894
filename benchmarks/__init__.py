"""Speed and memory, each beside a peer or a physical floor in the same run.

`make bench` prints one JSON line per figure: name, value, unit, peer (what it is held against), ratio (ours over the
peer's: above 1 is better for rates, below 1 for costs). Each benchmark's module has a `run()` that gives its
figures, as a list or one by one.
"""

import msgspec

__all__ = ["Figure"]


class Figure(msgspec.Struct, frozen=True):
    """One measured figure. `ratio` is ours over the peer's; `note` says what a reader must know."""

    name: str
    value: float
    unit: str
    peer: str
    peer_value: float | None = None
    ratio: float | None = None
    note: str = ""

    def line(self) -> bytes:
        rounded = {
            key: round(value, 4) if isinstance(value, float) else value
            for key, value in msgspec.structs.asdict(self).items()
            if value not in (None, "")
        }
        return msgspec.json.encode(rounded)
