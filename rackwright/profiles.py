"""Reading a profile's file: YAML as version 1.2 means it, or JSON, with every fault at once.

YAML 1.1, which most libraries still read, takes `on:` for true, `no` for false, 010 for eight and 2026-01-01 for a
date. Here the plain words mean what they mean in YAML 1.2's core schema: only true and false are truths, and what is
read differently elsewhere is refused with a hint. Source: YAML 1.2.2, chapter 10.3.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from protocol.errors import Issue, RequestError

__all__ = [
    "file_name",
    "profile_from_file",
    "profile_from_json",
    "profile_from_text",
    "profile_from_yaml",
    "profile_to_yaml",
]

_LARGEST = 1 << 20
"""Characters; also what the control plane takes."""
_MOST_VALUES = 100_000
"""An alias counts as often as it is used: a small file can ask for billions."""
_DEEPEST = 100
_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_WHOLE = {
    re.compile(r"[-+]?(0|[1-9][0-9]*)"): 10,
    re.compile(r"0o[0-7]+"): 8,
    re.compile(r"0x[0-9a-fA-F]+"): 16,
}
"""Whole numbers and their base."""
_MOST_DIGITS = 24
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "seq", "map")}


def file_name(file: Path) -> str:
    """The file as messages name it."""
    return "standard input" if str(file) == "-" else str(file)


def profile_from_file(file: Path) -> object:
    """The document in a file; `-` is standard input. Raises RequestError INVALID_INPUT with every fault."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise _refusal(file_name(file), [Issue("", f"it cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        issue = Issue("", f"it is no text in UTF-8: byte {error.start}", "save it as UTF-8")
        raise _refusal(file_name(file), [issue]) from error
    return profile_from_text(text, file_name(file))


def profile_from_text(text: str, name: str = "the profile") -> object:
    """The document: JSON where the name ends so or the text begins so, else YAML. Raises RequestError."""
    if name.endswith(".json") or text.lstrip().startswith("{"):
        return profile_from_json(text, name)
    return profile_from_yaml(text, name)


def profile_from_json(text: str, name: str = "the profile") -> object:
    """The document as a JSON value. Raises RequestError INVALID_INPUT; a name twice in one object is a fault."""
    issues: list[Issue] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice = sorted({key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1})
            issues.extend(Issue(key, "stands twice in one object", "keep one of them") for key in twice)
        return made

    def no_number(word: str) -> None:
        issues.append(Issue("", f"{word} is no JSON number"))

    try:
        _bounded(text)
        document: object = json.loads(text, object_pairs_hook=members, parse_constant=no_number)
    except json.JSONDecodeError as error:
        issues = [Issue(f"line {error.lineno}, column {error.colno}", f"it is no JSON: {error.msg}")]
    except (ValueError, RecursionError) as error:
        issues = [Issue("", _refused_because(error))]
    if issues:
        raise _refusal(name, issues)
    return document


def profile_from_yaml(text: str, name: str = "the profile") -> object:
    """The document as a JSON value. Raises RequestError INVALID_INPUT with every fault, its path and its line."""
    reader = _Reader()
    try:
        _bounded(text)
        root = _compose(text)
        document = None if root is None else reader.value(root, "")
        if root is None:
            reader.issues.append(Issue("", "the file is empty"))
    except yaml.MarkedYAMLError as error:
        reader.issues = [_syntax_issue(error)]
    except yaml.YAMLError as error:
        reader.issues = [Issue("", f"it is no YAML: {error}")]
    except (ValueError, RecursionError) as error:
        reader.issues = [Issue("", _refused_because(error))]
    if reader.issues:
        raise _refusal(name, reader.issues)
    return document


def profile_to_yaml(document: Mapping[str, object]) -> str:
    """A document as YAML that `profile_from_yaml` reads back as the same, and older readers too."""
    text: str = yaml.dump(
        document, Dumper=_Writer, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110
    )
    return text


class _Reader:
    """Makes JSON values of YAML's nodes."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self._values = 0

    def value(self, node: yaml.Node, path: str, depth: int = 0) -> object:
        """Raises ValueError where the document grows beyond every bound."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ValueError(f"it holds more than {_MOST_VALUES} values once its aliases are put in place")
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply, or holds an alias of what it stands in")
        if isinstance(node, yaml.MappingNode):
            return dict(self._members(node, path, depth))
        if isinstance(node, yaml.SequenceNode):
            self._known_tag(node, path, "seq")
            return [self.value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _members(self, node: yaml.MappingNode, path: str, depth: int) -> Iterator[tuple[str, object]]:
        self._known_tag(node, path, "map")
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            where = f"{path}.{key}" if path else key
            line = key_node.start_mark.line + 1
            if key in seen:
                self._fault(where, key_node, f"stands twice: it is also in line {seen[key]}", "keep one of them")
            seen.setdefault(key, line)
            yield key, self.value(value_node, where, depth + 1)

    def _key(self, node: yaml.Node, path: str) -> str | None:
        """The name of a member; None, with an issue, where it is no text."""
        if not isinstance(node, yaml.ScalarNode):
            self._fault(path, node, "a name must be a text, not a list or an object")
            return None
        if node.value == "<<" and node.style is None:
            self._fault(path, node, "merge keys (<<) are not part of YAML 1.2", "write the lines out")
            return None
        made = self._scalar(node, path)
        if not isinstance(made, str):
            self._fault(path, node, f"the name {node.value!r} is not a text", "put it in quotes")
            return None
        return made

    def _scalar(self, node: yaml.Node, path: str) -> object:
        """The value of a plain word by YAML 1.2's core schema; quoted words and blocks are texts."""
        word = str(node.value)
        if node.tag not in ("!", "") and not self._known_tag(node, path, *_TAGS.values()):
            return word
        wanted = _TAGS.get(node.tag)
        if wanted == "str" or (wanted is None and isinstance(node, yaml.ScalarNode) and node.style is not None):
            return word
        trap = _trap(word)
        if trap is not None:
            self._fault(path, node, f"{word[:40]} {trap}", "put it in quotes if it is a text")
            return word
        found = _plain_value(word)
        if wanted in ("int", "float", "bool", "null") and isinstance(found, str):
            self._fault(path, node, f"{word!r} is not of the kind !!{wanted}")
        return found

    def _known_tag(self, node: yaml.Node, path: str, *wanted: str) -> bool:
        if node.tag in ("!", "", None) or _TAGS.get(node.tag) in wanted:
            return True
        self._fault(path, node, f"the tag {node.tag} has no place here", "leave it out")
        return False

    def _fault(self, path: str, node: yaml.Node, message: str, hint: str = "") -> None:
        self.issues.append(Issue(path, f"line {node.start_mark.line + 1}: {message}", hint))


class _Composer(yaml.SafeLoader):
    """Leaves plain words unresolved: what they mean is decided by `_plain_value`."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        return ""


class _Writer(yaml.SafeDumper):
    """Quotes each text that a reader, old or new, would take for something else."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def text(self, word: str) -> yaml.ScalarNode:
        """A block for several lines, as the user will have written them."""
        if _is_block(word):
            return self.represent_scalar("tag:yaml.org,2002:str", word, style="|")
        plain = isinstance(_plain_value(word), str) and not _trap(word) and word != "<<"
        style = None if plain else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", word, style=style if word.isprintable() else '"')


_Writer.add_representer(str, _Writer.text)


def _is_block(word: str) -> bool:
    """Whether it can stand as a block of lines without any escape."""
    *lines, end = word.split("\n")
    return (
        bool(lines)
        and end == ""
        and all(line.isprintable() and line == line.rstrip() for line in lines)
        and not word.startswith((" ", "\n"))
    )


def _compose(text: str) -> yaml.Node | None:
    loader = _Composer(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _plain_value(word: str) -> object:
    if _NULL.fullmatch(word):
        return None
    if _TRUE.fullmatch(word):
        return True
    if _FALSE.fullmatch(word):
        return False
    for pattern, base in _WHOLE.items():
        if pattern.fullmatch(word):
            return int(word, base)
    return float(word) if _FLOAT.fullmatch(word) else word


def _trap(word: str) -> str | None:
    """What is wrong with a plain word that some readers would take for another value, or JSON has no value for."""
    if _LEADING_ZERO.fullmatch(word):
        return "is eight-based to some readers and ten-based to others (eight-based is written 0o17)"
    if _NO_NUMBER.fullmatch(word):
        return "is no number that JSON has"
    if any(pattern.fullmatch(word) for pattern in _WHOLE) and not _fits(word):
        return "has more digits than a number can keep"
    if _FLOAT.fullmatch(word) and not math.isfinite(float(word)):
        return "is beyond every number"
    return None


def _fits(word: str) -> bool:
    """Whether a whole number has 64 bits at the most."""
    return len(word) <= _MOST_DIGITS and -(1 << 63) <= int(word, 0) < (1 << 64)


def _refused_because(error: ValueError | RecursionError) -> str:
    return str(error) if isinstance(error, ValueError) else "it is nested too deeply"


def _syntax_issue(error: yaml.MarkedYAMLError) -> Issue:
    mark = error.problem_mark or error.context_mark
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
    said = " ".join(part for part in (error.context, error.problem) if part)
    hint = "indent with blanks, never with tabs" if "'\\t'" in said else ""
    return Issue(where, f"it is no YAML: {said}", hint)


def _bounded(text: str) -> None:
    if len(text) > _LARGEST:
        raise ValueError(f"it has {len(text)} characters: {_LARGEST} are the most")


def _refusal(name: str, issues: list[Issue]) -> RequestError:
    return RequestError.invalid(issues, name)
