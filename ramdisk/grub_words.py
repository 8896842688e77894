"""GRUB's commands that only compute: tests, and the environment block. Pure."""

from collections.abc import Callable, Sequence

__all__ = ["FileTest", "evaluate_test", "parse_environment_block"]

FileTest = Callable[[str, str], bool]
"""Of a letter (d, e, f, s) and a path: whether that is so."""
_SIGNATURE = b"# GRUB Environment Block\n"


def parse_environment_block(data: bytes) -> dict[str, str]:
    """`grubenv`: lines of name=value, filled up with #. A file that is none gives nothing."""
    if not data.startswith(_SIGNATURE):
        return {}
    found = {}
    text = data[len(_SIGNATURE) :].decode(errors="replace").replace("\\\n", "\n")
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found[name] = value.replace("\\\\", "\\")
    return found


def evaluate_test(words: Sequence[str], file_test: FileTest) -> bool:
    """`[ … ]` without its brackets. What cannot be understood is false, as an error is in GRUB."""
    return _Test(list(words), file_test).whole()


class _Test:
    """expression: and { -o and }; and: not { [-a] not }; not: { ! } primary."""

    def __init__(self, words: list[str], file_test: FileTest) -> None:
        self._words = words
        self._file_test = file_test
        self._place = 0

    def whole(self) -> bool:
        if not self._words:
            return False
        result = self._either()
        return result and self._place >= len(self._words)

    def _either(self) -> bool:
        result = self._both()
        while self._peek() == "-o":
            self._place += 1
            result = self._both() or result
        return result

    def _both(self) -> bool:
        result = self._negated()
        while self._peek() == "-a":
            self._place += 1
            result = self._negated() and result
        return result

    def _negated(self) -> bool:
        if self._peek() == "!":
            self._place += 1
            return not self._negated()
        return self._primary()

    def _primary(self) -> bool:
        word = self._take()
        if word == "(":
            result = self._either()
            return self._take() == ")" and result
        following = self._peek()
        if following is not None and following in _COMPARISONS and self._place + 1 < len(self._words):
            self._place += 1
            return _COMPARISONS[following](word, self._take())
        if word in ("-z", "-n") and following is not None:
            return (self._take() == "") == (word == "-z")
        if word in ("-d", "-e", "-f", "-s") and following is not None:
            return self._file_test(word[1], self._take())
        return word != ""

    def _peek(self) -> str | None:
        return self._words[self._place] if self._place < len(self._words) else None

    def _take(self) -> str:
        word = self._peek()
        self._place += 1
        return word or ""


def _number(word: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        return 0


_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "-eq": lambda a, b: _number(a) == _number(b),
    "-ne": lambda a, b: _number(a) != _number(b),
    "-lt": lambda a, b: _number(a) < _number(b),
    "-le": lambda a, b: _number(a) <= _number(b),
    "-gt": lambda a, b: _number(a) > _number(b),
    "-ge": lambda a, b: _number(a) >= _number(b),
}
