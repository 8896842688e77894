"""Whether a machine that joins can be the one that its token is for. Pure.

The token alone says much: it came to the machine by the machine's own BMC. But a BMC's address may be another
machine's, and what follows is destructive. So UUID, serial number and MACs are weighed against what is known: parts
are replaced now and then, so that one difference does not decide where more agrees. A value that several machines
share says nothing.
"""

from collections.abc import Mapping, Set
from typing import NamedTuple

from protocol.machine_facts import Marks, turned

__all__ = ["Known", "contradiction"]

Known = Mapping[str, Set[str]]
"""By kind (uuid, serial, mac) the values that are known; a kind of which nothing is known may be missing."""
_WEIGHTS = {"uuid": 3, "serial": 2, "mac": 2}
_WORDS = {"uuid": "UUID", "serial": "serial number", "mac": "MAC addresses"}


class _Finding(NamedTuple):
    kind: str
    weight: int
    """Above zero: it agrees. Below: it differs."""
    words: str


def contradiction(told: Marks, known: Known, elsewhere: Mapping[tuple[str, str], str]) -> str | None:
    """Why this cannot be the machine; None where nothing speaks against it, or more speaks for it.

    `elsewhere`: by kind and value the name of another machine that is known with it.
    """
    findings = [finding for kind in _WEIGHTS if (finding := _find(kind, told, known, elsewhere)) is not None]
    if sum(finding.weight for finding in findings) >= 0:
        return None
    return "; ".join(finding.words for finding in findings if finding.weight < 0)


def _find(kind: str, told: Marks, known: Known, elsewhere: Mapping[tuple[str, str], str]) -> _Finding | None:
    own = known.get(kind, frozenset())
    shared = {value for value in own if (kind, value) in elsewhere}
    said = {value for other, value in told.pairs() if other == kind} - shared
    expected = own - shared
    if said & expected:
        return _Finding(kind, _WEIGHTS[kind], "")
    foreign = sorted({elsewhere[kind, value] for value in said if (kind, value) in elsewhere})
    if not said or not (expected or foreign):
        return None
    words = f"its {_WORDS[kind]} {_listed(kind, said)}"
    words += f", known of {', '.join(foreign)}" if foreign else f", where {_listed(kind, expected)} is known"
    return _Finding(kind, -_WEIGHTS[kind], words)


def _listed(kind: str, values: Set[str]) -> str:
    shown = [f"{value} (or {turned(value)})" if kind == "uuid" else value for value in sorted(values)]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
