"""`when`: whether a step is to run, by the node's labels.

Terms are joined by `&&`: `key` (the label is there and not `false`), `!key`, `key=value`, `key!=value` (also true
where the label is absent). There is no `||`, no parenthesis and no quote. An expression without a term is false, and
so is one with a malformed term: a step that nobody can say to be wanted does not touch a machine.
"""

import re
from collections.abc import Mapping

import msgspec

from protocol.errors import Issue

__all__ = ["Term", "WhenError", "expression_faults", "holds", "parse"]

# As long and as spelt as a label's name can be: a key that no label can have is a slip.
_KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
_TERM = re.compile(
    rf"(?P<not>!?)\s*(?P<key>{_KEY})|(?P<name>{_KEY})\s*(?P<op>!?=)\s*(?P<value>[^=!&|()\"'\s](?:[^=!&|()\"']*))"
)
_NO_VALUE = re.compile(rf"{_KEY}\s*!?=")


class WhenError(ValueError):
    """An expression that cannot be read; the text names the term, `hint` says how to write it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Term(msgspec.Struct, frozen=True):
    key: str
    value: str | None
    """None asks for presence."""
    negated: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        label = labels.get(self.key)
        found = label not in (None, "false") if self.value is None else label == self.value
        return found is not self.negated


def parse(expression: str) -> list[Term]:
    """The terms, empty for an expression of blanks and `&&` only. Raises WhenError for a malformed term."""
    return [_term(text) for text in _texts(expression)]


def holds(expression: str, labels: Mapping[str, str]) -> bool:
    """Whether every term holds. An expression without a term, or with a malformed one, is false."""
    try:
        terms = parse(expression)
    except WhenError:
        return False
    return bool(terms) and all(term.holds(labels) for term in terms)


def expression_faults(expression: str, path: str) -> list[Issue]:
    """Every malformed term of the expression."""
    issues = []
    for text in _texts(expression):
        try:
            _term(text)
        except WhenError as error:
            issues.append(Issue(path, error.message, error.hint))
    return issues


def _texts(expression: str) -> list[str]:
    return [text for text in (part.strip() for part in expression.split("&&")) if text]


def _term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise WhenError(f"{text!r} is no term", _hint(text))
    if match["op"] is not None:
        return Term(match["name"], match["value"], match["op"] == "!=")
    return Term(match["key"], None, match["not"] == "!")


def _hint(text: str) -> str:
    if "|" in text or "(" in text or ")" in text:
        return "there is no || and no parenthesis: write two steps, or let an earlier step set a label"
    if '"' in text or "'" in text:
        return "write the value without quotes"
    if "==" in text:
        return "write a single ="
    if _NO_VALUE.fullmatch(text):
        return "write key=value, or just the key to ask whether the label is there"
    return "write key, !key, key=value or key!=value, and join terms with &&"
