"""Fault rules: data that say which requests go wrong, how, and how often.

A rule selects by method, path, body, headers and kind of login; its effect alters the answer, delays it,
replaces it or cuts the connection. `after` passes over the first matches, `count` ends the rule, and a
`sequence` gives successive effects to successive matches. Rules are tried in their order; the first that
applies wins.
"""

import base64
import binascii
import tomllib
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from simulators.redfish.accounts import LoginKind
from simulators.redfish.documents import Answer, JsonObject, Request, decode, encode


class FaultFileError(ValueError):
    """A fault file that cannot be used: the message lists every fault in it with its place."""


class Drop(StrEnum):
    """When the connection is cut: without executing the request, or after it was executed."""

    BEFORE = "before"
    AFTER = "after"


class RawAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An answer that no correct service would give.

    `text` or `base64` is the body as it is. `megabytes` streams that many MiB, in chunks, `pause`
    seconds apart. `truncate_at` sends the service's true answer, announces all of its length, and cuts
    the connection after so many bytes.
    """

    text: str = ""
    base64: str = ""
    megabytes: int = 0
    pause: float = 0.0
    truncate_at: int | None = None
    content_type: str = "text/html"

    def body(self) -> bytes:
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()


class Effect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What happens to one matching request. Everything is optional; the parts combine.

    `latency`: seconds before the request is executed. `answer_late`: it is executed at once, the
    answer leaves so many seconds later. `status` with `body` answers without executing the request,
    unless `execute` is true; `body` may be JSON or a string. `merge` is a JSON merge patch (RFC 7396:
    null removes) into the answer; `set` writes values, null too, at JSON pointers. `headers` replace,
    `add_headers` add (a name may then come twice), `remove_headers` remove.
    """

    latency: float = 0.0
    answer_late: float = 0.0
    status: int | None = None
    body: Any = None
    execute: bool = False
    merge: JsonObject | None = None
    set: dict[str, Any] | None = None
    headers: dict[str, str] = {}
    add_headers: dict[str, str] = {}
    remove_headers: tuple[str, ...] = ()
    drop: Drop | None = None
    raw: RawAnswer | None = None

    @property
    def executes(self) -> bool:
        """Whether the service carries the request out."""
        if self.drop is Drop.BEFORE:
            return False
        if self.raw is not None and self.raw.truncate_at is None:
            return self.execute
        return self.status is None or self.execute

    def alter(self, answer: Answer) -> Answer:
        """The answer as it leaves: a new one, the service's own is not touched."""
        status, content, headers = answer.status, answer.body, answer.headers.copy()
        if self.status is not None:
            status = self.status
        if self.body is not None:
            content = self.body.encode() if isinstance(self.body, str) else encode(self.body)
            headers["Content-Type"] = "text/html" if isinstance(self.body, str) else "application/json"
        elif self.status is not None and not self.executes:
            content = b""
        if self.merge is not None or self.set is not None:
            content = altered_document(content, self.merge, self.set)
        for name in self.remove_headers:
            headers.popall(name, None)
        for name, value in self.headers.items():
            headers.popall(name, None)
            headers.add(name, value)
        for name, value in self.add_headers.items():
            headers.add(name, value)
        return Answer(status, content, headers, answer.closes_connection)


class FaultRule(Effect, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A selector with an effect. `method` may list several ("GET,PATCH"); `path` and header values are globs.

    `match_body` must be contained in the JSON body. `login` selects by "none", "basic" or "session".
    With a `sequence` the rule's own effect is not used: each match takes the next one, and the rule
    ends with the last (`count` sets another end: the last effect repeats).
    """

    name: str = ""
    method: str = "*"
    path: str = "*"
    match_body: JsonObject | None = None
    match_headers: dict[str, str] = {}
    login: LoginKind | None = None
    after: int = 0
    count: int | None = None
    sequence: tuple[Effect, ...] = ()

    def matches(self, request: Request, login: LoginKind) -> bool:
        if self.method != "*" and request.method not in {word.strip().upper() for word in self.method.split(",")}:
            return False
        path, glob = request.path.rstrip("/").lower(), self.path.rstrip("/").lower()
        if glob and not fnmatchcase(path, glob):
            return False
        if self.login is not None and login is not self.login:
            return False
        for name, glob_value in self.match_headers.items():
            value = request.headers.get(name)
            if value is None or not fnmatchcase(value, glob_value):
                return False
        return self.match_body is None or contains(request.json_object(), self.match_body)

    def faults(self) -> list[str]:
        """What is wrong with the rule beyond its types."""
        found = [
            f"{field} must not be negative"
            for field in ("latency", "answer_late", "after")
            if getattr(self, field) < 0
        ]
        if self.count is not None and self.count < 1:
            found.append("count must be 1 or more; leave it out for a rule without an end")
        for effect in (self, *self.sequence):
            if effect.status is not None and not 200 <= effect.status <= 599:
                found.append(f"status {effect.status} is not an HTTP status from 200 to 599")
            if effect.raw is not None:
                try:
                    effect.raw.body()
                except binascii.Error as fault:
                    found.append(f"raw.base64: {fault}")
        return found


class _Entry:
    __slots__ = ("hits", "rule", "seen")

    def __init__(self, rule: FaultRule) -> None:
        self.rule = rule
        self.seen = 0
        self.hits = 0

    def next_effect(self, ahead: int = 0) -> Effect | None:
        """What the rule does to the request that was counted last, or to the next one; None before it begins and
        after its end."""
        limit = self.rule.count if self.rule.count is not None else (len(self.rule.sequence) or None)
        if self.seen + ahead <= self.rule.after or (limit is not None and self.hits >= limit):
            return None
        if self.rule.sequence:
            return self.rule.sequence[min(self.hits + 1, len(self.rule.sequence)) - 1]
        return self.rule


class FaultBook:
    """The rules in force. They may be added and removed while the service runs."""

    def __init__(self, rules: Iterable[FaultRule] = ()) -> None:
        self._entries: dict[str, _Entry] = {}
        self._numbers = count(1)
        for rule in rules:
            self.add(rule)

    def add(self, rule: FaultRule) -> str:
        """Puts a rule in force and returns its name. ValueError lists every fault of the rule."""
        if faults := rule.faults():
            raise ValueError("the fault rule cannot be used: " + "; ".join(faults))
        name = rule.name or f"rule-{next(self._numbers)}"
        self._entries.pop(name, None)
        self._entries[name] = _Entry(rule)
        return name

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def clear(self) -> None:
        self._entries.clear()

    def hits(self, name: str) -> int:
        """How often a rule took effect."""
        entry = self._entries.get(name)
        return entry.hits if entry else 0

    def __len__(self) -> int:
        return len(self._entries)

    def rules(self) -> list[JsonObject]:
        """The rules as data, each with its name and how often it matched and took effect."""
        return [
            {**msgspec.to_builtins(entry.rule), "name": name, "seen": entry.seen, "hits": entry.hits}
            for name, entry in self._entries.items()
        ]

    def take(self, request: Request, login: LoginKind) -> tuple[str, Effect] | None:
        """The effect for this request, counted as used; None where no rule applies."""
        for name, entry in self._entries.items():
            if not entry.rule.matches(request, login):
                continue
            entry.seen += 1
            effect = entry.next_effect()
            if effect is not None:
                entry.hits += 1
                return name, effect
        return None

    def expanded(self, request: Request, login: LoginKind, document: JsonObject) -> JsonObject | None:
        """The document that `request` would get, in the place of its link in a collection.

        A rule that alters the document alters it there too. None where a rule makes the request fail: the link stays,
        and the rule waits for who follows it.
        """
        for entry in self._entries.values():
            if not entry.rule.matches(request, login):
                continue
            effect = entry.next_effect(ahead=1)
            if effect is None:
                entry.seen += 1
                continue
            if effect.status is not None or effect.drop is not None or effect.raw is not None:
                return None
            if effect.merge is None and effect.set is None:
                return document
            entry.seen, entry.hits = entry.seen + 1, entry.hits + 1
            altered = decode(altered_document(encode(document), effect.merge, effect.set))
            return altered if isinstance(altered, dict) else None
        return document


def load_faults(file: Path) -> list[FaultRule]:
    """The rules of a JSON or TOML file: `faults = [...]`, or a JSON list. FaultFileError lists all faults."""
    try:
        content = file.read_bytes()
        document = tomllib.loads(content.decode()) if file.suffix == ".toml" else decode(content)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, tomllib.TOMLDecodeError) as fault:
        raise FaultFileError(
            f"{file} cannot be read as {'TOML' if file.suffix == '.toml' else 'JSON'}: {fault}"
        ) from fault
    rules = document.get("faults") if isinstance(document, dict) else document
    if not isinstance(rules, list):
        raise FaultFileError(f"{file} holds no rules: give a list named 'faults', each rule a table.")
    return parse_rules(rules, str(file))


def parse_rules(rules: list[Any], source: str) -> list[FaultRule]:
    """Rules from plain data. FaultFileError names every rule that cannot be used, and why."""
    parsed: list[FaultRule] = []
    found: list[str] = []
    for number, data in enumerate(rules, start=1):
        try:
            rule = msgspec.convert(data, FaultRule)
        except msgspec.ValidationError as fault:
            found.append(f"rule {number}: {fault}")
            continue
        found += [f"rule {number}: {fault}" for fault in rule.faults()]
        parsed.append(rule)
    if found:
        raise FaultFileError(f"{source} cannot be used:\n  " + "\n  ".join(found))
    return parsed


def contains(whole: Any, part: Any) -> bool:
    """Whether `part` is found in `whole`: objects by their members, all else by equality."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    return bool(whole == part)


def merge_patch(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396): objects merge, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def altered_document(content: bytes, merge: JsonObject | None, values: dict[str, Any] | None) -> bytes:
    """JSON content after a merge patch and values set at JSON pointers; content that is not JSON stays."""
    try:
        document = decode(content) if content else {}
    except msgspec.DecodeError:
        return content
    if merge is not None:
        document = merge_patch(document, merge)
    for pointer, value in (values or {}).items():
        document = set_at(document, pointer.removeprefix("#").strip("/").split("/"), value)
    return encode(document)


def set_at(document: Any, steps: list[str], value: Any) -> Any:
    """A copy of `document` with `value` at the place that the steps lead to; missing objects are made."""
    if not steps or steps == [""]:
        return value
    step, rest = steps[0].replace("~1", "/").replace("~0", "~"), steps[1:]
    if isinstance(document, list) and step.isdigit() and int(step) < len(document):
        changed = list(document)
        changed[int(step)] = set_at(changed[int(step)], rest, value)
        return changed
    holder = dict(document) if isinstance(document, dict) else {}
    holder[step] = set_at(holder.get(step), rest, value)
    return holder
