"""Faults on demand: which packets they meet, and what then goes wrong.

A rule has a selector (phase, network function, command, data prefix, suite, privilege, user) and at least
one effect. `after` lets the first N matching packets pass; `count` ends the rule after that many faults.
Rules are tried in order; the first that fits acts.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec


class Phase(StrEnum):
    """The parts of a BMC's conversation that a rule can select."""

    PING = "ping"
    AUTH_CAP = "auth-cap"
    OPEN_SESSION = "open-session"
    RAKP_1 = "rakp1"
    RAKP_3 = "rakp3"
    COMMAND = "command"
    SOL = "sol"


class FaultError(ValueError):
    """A fault rule or a file of rules that cannot be used; the text names every fault found."""


_SET_UP = frozenset({Phase.OPEN_SESSION, Phase.RAKP_1, Phase.RAKP_3})
_HEX = re.compile(r"\A(?:[0-9a-fA-F]{2})*\Z")


class FaultRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault. Selector fields that are None fit everything.

    Effects, which may be joined:
    `completion_code` refuses a command without executing it; `status` refuses a session set-up step;
    `drop` loses the request before it is executed; `drop_answer` loses the answer of an executed request;
    `delay` seconds pass before the request is executed and answered; `late` seconds pass before the answer
    of a request that is executed at once; `duplicate` sends the answer that many extra times;
    `wrong_sequence` answers as if to another request; `replay_sequence` repeats the last session sequence number;
    `truncate` cuts the datagram to so many bytes; `garbage` (hexadecimal) is sent in place of the answer;
    `odd_size` (SOL activation) tells the console this inbound payload size, as a wrong-endian BMC does;
    `nack` refuses SOL characters.
    """

    phase: Phase | None = None
    netfn: int | None = None
    cmd: int | None = None
    data: str = ""
    suite: int | None = None
    privilege: int | None = None
    user: str | None = None

    completion_code: int | None = None
    status: int | None = None
    drop: bool = False
    drop_answer: bool = False
    delay: float = 0.0
    late: float = 0.0
    duplicate: int = 0
    wrong_sequence: bool = False
    replay_sequence: bool = False
    truncate: int | None = None
    garbage: str | None = None
    odd_size: int | None = None
    nack: bool = False

    count: int | None = None
    after: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise FaultError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not self._has_effect():
            yield "the rule has no effect: give completion_code, status, drop, delay, late or another one"
        for field, highest in (("netfn", 0x3E), ("cmd", 0xFF), ("completion_code", 0xFF), ("status", 0xFF)):
            value = getattr(self, field)
            if value is not None and not 0 <= value <= highest:
                yield f"{field} is {value}, expected 0 to {highest}"
        if self.netfn is not None and self.netfn & 1:
            yield f"netfn is {self.netfn}, expected an even number: requests have even network functions"
        for field in ("data", "garbage"):
            if not _HEX.match(getattr(self, field) or ""):
                yield f'{field} is not hexadecimal: write two digits a byte, as in "00ff"'
        for field in ("delay", "late", "duplicate", "after"):
            if getattr(self, field) < 0:
                yield f"{field} is negative"
        if self.count is not None and self.count < 1:
            yield f"count is {self.count}, expected at least 1"
        if self.status is not None and self.phase not in _SET_UP:
            yield "status needs phase open-session, rakp1 or rakp3; commands take completion_code"
        if self.completion_code is not None and self.phase in _SET_UP | {Phase.PING, Phase.SOL}:
            yield f"completion_code does not exist in phase {self.phase}; session set-up takes status"

    @property
    def title(self) -> str:
        """The rule's name, or the names of its effects."""
        if self.name:
            return self.name
        effects = (
            "completion_code", "status", "drop", "drop_answer", "delay", "late", "duplicate", "wrong_sequence",
            "replay_sequence", "truncate", "garbage", "odd_size", "nack",
        )  # fmt: skip
        return "+".join(field for field in effects if getattr(self, field) not in (None, False, 0))

    def _has_effect(self) -> bool:
        optional = (self.completion_code, self.status, self.truncate, self.garbage, self.odd_size)
        flags = (self.drop, self.drop_answer, self.wrong_sequence, self.replay_sequence, self.nack)
        return (
            any(value is not None for value in optional) or any(flags) or any((self.delay, self.late, self.duplicate))
        )

    def fits(self, occasion: "Occasion") -> bool:
        """Whether the selector fits."""
        selects_command = self.netfn is not None or self.cmd is not None or bool(self.data)
        phase = self.phase
        if phase is None:
            if selects_command and occasion.netfn is None:
                return False
        elif phase is not occasion.phase:
            return False
        pairs = (
            (self.netfn, occasion.netfn),
            (self.cmd, occasion.cmd),
            (self.suite, occasion.suite),
            (self.privilege, occasion.privilege),
            (self.user, occasion.user),
        )
        if any(wanted is not None and wanted != seen for wanted, seen in pairs):
            return False
        return occasion.data.startswith(bytes.fromhex(self.data))


class Occasion(msgspec.Struct, frozen=True):
    """What a rule's selector is held against: one packet, understood."""

    phase: Phase
    netfn: int | None = None
    cmd: int | None = None
    data: bytes = b""
    suite: int | None = None
    privilege: int | None = None
    user: str | None = None


class FaultPlan:
    """The rules in force, with how often each met its packet. It may be changed at any time."""

    def __init__(self, rules: Iterable[FaultRule] = ()) -> None:
        self._entries: list[tuple[FaultRule, list[int]]] = []
        self.replace(rules)

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def rules(self) -> tuple[FaultRule, ...]:
        """The rules in force, in their order."""
        return tuple(rule for rule, _ in self._entries)

    def add(self, rule: FaultRule) -> FaultRule:
        """Put a rule behind those in force."""
        self._entries.append((rule, [0]))
        return rule

    def replace(self, rules: Iterable[FaultRule]) -> None:
        """Put these rules in the place of all others; their counts start anew."""
        self._entries = [(rule, [0]) for rule in rules]

    def clear(self) -> None:
        """Take every rule away."""
        self._entries = []

    def met(self, rule: FaultRule) -> int:
        """How many packets fitted this rule, those let pass by `after` included."""
        return sum(seen[0] for known, seen in self._entries if known is rule)

    def pick(self, occasion: Occasion) -> FaultRule | None:
        """The rule that acts on this packet, or None; counts it."""
        for rule, seen in self._entries:
            if rule.count is not None and seen[0] >= rule.after + rule.count:
                continue
            if rule.fits(occasion):
                seen[0] += 1
                if seen[0] > rule.after:
                    return rule
        return None


def load_faults(path: Path) -> list[FaultRule]:
    """Read rules from a TOML file (`[[faults]]`) or a JSON file (`{"faults": [...]}` or a bare list).

    Raises FaultError, which names the file and every rule that is wrong.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FaultError(f"{path}: {error.strerror or error}: give a readable file of fault rules") from error
    try:
        tree: Any = msgspec.toml.decode(text) if path.suffix == ".toml" else msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise FaultError(f"{path}: not {kind}: {error}") from error
    rows = tree.get("faults") if isinstance(tree, dict) else tree
    if not isinstance(rows, list):
        raise FaultError(f'{path}: no list of rules: write [[faults]] tables, or a JSON list under "faults"')
    if isinstance(tree, dict) and len(tree) > 1:
        others = ", ".join(sorted(set(tree) - {"faults"}))
        raise FaultError(f"{path}: unknown keys beside faults: {others}")
    rules, problems = [], []
    for number, row in enumerate(rows, start=1):
        try:
            rules.append(msgspec.convert(row, FaultRule))
        except (msgspec.ValidationError, FaultError) as error:
            problems.append(f"rule {number}: {error}")
    if problems:
        raise FaultError(f"{path}: " + "; ".join(problems))
    return rules
