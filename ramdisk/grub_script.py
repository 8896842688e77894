"""The language of GRUB's configuration, read into a tree. Pure.

Source: the GRUB manual, "Writing your own GRUB script" (words, quoting, variables, blocks), and what distributions'
grub-mkconfig writes. Where a file goes beyond it, that is an error with the line; nothing is guessed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Command",
    "For",
    "Function",
    "If",
    "Part",
    "ScriptError",
    "Statement",
    "While",
    "Word",
    "parse_script",
]

_BLANK = " \t\r"
_BREAK = "\n;"
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_KEYWORDS = frozenset({"if", "then", "elif", "else", "fi", "for", "in", "do", "done", "while", "until", "function"})
_DEEPEST = 64


class ScriptError(ValueError):
    """The text is no such script; it says on which line."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word: text, or a variable to be filled in. `quoted`: its value is not split at blanks."""

    kind: Literal["text", "variable"]
    value: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Word:
    parts: tuple[Part, ...]

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes and variables: only such a one can be a keyword or a brace."""
        if len(self.parts) == 1 and self.parts[0].kind == "text" and not self.parts[0].quoted:
            return self.parts[0].value
        return None


@dataclass(frozen=True, slots=True)
class Command:
    words: tuple[Word, ...]
    block: "tuple[Statement, ...] | None" = None
    """The body of a menu entry."""


@dataclass(frozen=True, slots=True)
class If:
    branches: "tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]"
    otherwise: "tuple[Statement, ...]"


@dataclass(frozen=True, slots=True)
class For:
    variable: str
    words: tuple[Word, ...]
    body: "tuple[Statement, ...]"


@dataclass(frozen=True, slots=True)
class While:
    condition: "tuple[Statement, ...]"
    body: "tuple[Statement, ...]"
    until: bool


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: "tuple[Statement, ...]"


Statement = Command | If | For | While | Function


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, or (None) the end of a command."""

    word: Word | None
    line: int


def parse_script(text: str) -> tuple[Statement, ...]:
    """Raises ScriptError."""
    return _Parser(list(_tokens(text))).whole()


def _tokens(text: str) -> Iterator[_Token]:
    place, line = 0, 1
    while place < len(text):
        letter = text[place]
        if letter in _BLANK:
            place += 1
        elif letter in _BREAK:
            yield _Token(None, line)
            line += letter == "\n"
            place += 1
        elif letter == "#":
            end = text.find("\n", place)
            place = len(text) if end < 0 else end
        elif text.startswith("\\\n", place):
            place, line = place + 2, line + 1
        else:
            scanner = _WordScanner(text, place, line)
            word = scanner.scan()
            yield _Token(word, line)
            place, line = scanner.place, scanner.line
    yield _Token(None, line)


class _WordScanner:
    """One word, from its first letter on."""

    def __init__(self, text: str, place: int, line: int) -> None:
        self._text = text
        self.place = place
        self.line = line
        self._parts: list[Part] = []
        self._letters: list[str] = []
        self._quoted = False

    def scan(self) -> Word:
        text = self._text
        while self.place < len(text):
            letter = text[self.place]
            if letter in _BLANK or letter in _BREAK:
                break
            if letter == "'":
                self._flush(quoted=False)
                self._single()
            elif letter == '"':
                self._flush(quoted=False)
                self._double()
            elif letter == "$":
                self._flush(quoted=False)
                self._variable(quoted=False)
            elif letter == "\\":
                self._escaped()
            else:
                self._letters.append(letter)
                self.place += 1
        self._flush(quoted=False)
        return Word(tuple(self._parts))

    def _single(self) -> None:
        end = self._text.find("'", self.place + 1)
        if end < 0:
            raise ScriptError(f"line {self.line}: a ' is not closed")
        body = self._text[self.place + 1 : end]
        self.line += body.count("\n")
        self._parts.append(Part("text", body, True))
        self.place = end + 1

    def _double(self) -> None:
        text, begun = self._text, self.line
        self.place += 1
        self._parts.append(Part("text", "", True))
        while True:
            if self.place >= len(text):
                raise ScriptError(f'line {begun}: a " is not closed')
            letter = text[self.place]
            if letter == '"':
                self.place += 1
                break
            if letter == "$":
                self._flush(quoted=True)
                self._variable(quoted=True)
            elif letter == "\\" and self.place + 1 < len(text) and text[self.place + 1] in '$"\\\n':
                if text[self.place + 1] != "\n":
                    self._letters.append(text[self.place + 1])
                self.line += text[self.place + 1] == "\n"
                self.place += 2
            else:
                self.line += letter == "\n"
                self._letters.append(letter)
                self.place += 1
        self._flush(quoted=True)

    def _variable(self, *, quoted: bool) -> None:
        text = self._text
        place = self.place + 1
        if text.startswith("{", place):
            end = text.find("}", place)
            if end < 0:
                raise ScriptError(f"line {self.line}: a ${{ is not closed")
            name, self.place = text[place + 1 : end], end + 1
        elif place < len(text) and text[place] in "?#@*":
            name, self.place = text[place], place + 1
        else:
            end = place
            while end < len(text) and text[end] in _NAME:
                end += 1
                if text[place].isdecimal():
                    break
            name, self.place = text[place:end], end
        if name:
            self._parts.append(Part("variable", name, quoted))
        else:
            self._parts.append(Part("text", "$", quoted))

    def _escaped(self) -> None:
        following = self._text[self.place + 1 : self.place + 2]
        if following == "\n":
            self.line += 1
        elif following:
            self._flush(quoted=False)
            self._parts.append(Part("text", following, True))
        self.place += 2

    def _flush(self, *, quoted: bool) -> None:
        if self._letters:
            self._parts.append(Part("text", "".join(self._letters), quoted))
            self._letters.clear()


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def whole(self) -> tuple[Statement, ...]:
        found = self._statements(frozenset())
        if self._place < len(self._tokens):
            self._fail(f"{self._keyword()!r} stands alone")
        return found

    def _statements(self, ends: frozenset[str]) -> tuple[Statement, ...]:
        """Up to one of these words, which is left to be read."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail("it is nested too deeply")
        found: list[Statement] = []
        while self._place < len(self._tokens):
            word = self._tokens[self._place].word
            if word is None:
                self._place += 1
                continue
            plain = word.plain
            if plain in ends or plain in ("}", "then", "elif", "else", "fi", "do", "done"):
                break
            found.append(self._statement(plain))
        self._depth -= 1
        return tuple(found)

    def _statement(self, plain: str | None) -> Statement:
        match plain:
            case "if":
                return self._if()
            case "for":
                return self._for()
            case "while" | "until":
                self._place += 1
                condition = self._statements(frozenset({"do"}))
                return While(condition, self._body(), plain == "until")
            case "function":
                self._place += 1
                name = self._plain("the name of a function")
                return Function(name, self._braces())
            case _:
                return self._command()

    def _if(self) -> If:
        branches = []
        while True:
            self._place += 1
            condition = self._statements(frozenset({"then"}))
            self._expect("then")
            branches.append((condition, self._statements(frozenset({"elif", "else", "fi"}))))
            if self._keyword() != "elif":
                break
        otherwise: tuple[Statement, ...] = ()
        if self._keyword() == "else":
            self._place += 1
            otherwise = self._statements(frozenset({"fi"}))
        self._expect("fi")
        return If(tuple(branches), otherwise)

    def _for(self) -> For:
        self._place += 1
        variable = self._plain("the variable of a for")
        self._expect("in")
        words = []
        while self._place < len(self._tokens) and (word := self._tokens[self._place].word) is not None:
            words.append(word)
            self._place += 1
        self._skip_breaks()
        return For(variable, tuple(words), self._body())

    def _body(self) -> tuple[Statement, ...]:
        self._expect("do")
        body = self._statements(frozenset({"done"}))
        self._expect("done")
        return body

    def _braces(self) -> tuple[Statement, ...]:
        self._skip_breaks()
        self._expect("{")
        body = self._statements(frozenset({"}"}))
        self._expect("}")
        return body

    def _command(self) -> Command:
        words: list[Word] = []
        block = None
        while self._place < len(self._tokens) and (word := self._tokens[self._place].word) is not None:
            if word.plain == "{":
                block = self._braces()
                break
            if word.plain == "}" and words:
                break
            words.append(word)
            self._place += 1
        if not words:
            self._fail(f"a command is missing before {self._keyword()!r}")
        return Command(tuple(words), block)

    def _plain(self, what: str) -> str:
        word = self._tokens[self._place].word if self._place < len(self._tokens) else None
        plain = None if word is None else word.plain
        if plain is None or plain in _KEYWORDS:
            self._fail(f"{what} is missing")
            return ""
        self._place += 1
        return plain

    def _expect(self, keyword: str) -> None:
        if self._keyword() != keyword:
            self._fail(f"{keyword!r} is missing")
        self._place += 1

    def _keyword(self) -> str | None:
        if self._place >= len(self._tokens):
            return None
        word = self._tokens[self._place].word
        return None if word is None else word.plain

    def _skip_breaks(self) -> None:
        while self._place < len(self._tokens) and self._tokens[self._place].word is None:
            self._place += 1

    def _fail(self, what: str) -> None:
        line = self._tokens[min(self._place, len(self._tokens) - 1)].line
        raise ScriptError(f"line {line}: {what}")
