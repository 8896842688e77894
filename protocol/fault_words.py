"""What msgspec says of a wrong value, in the words of whoever wrote the value."""

import re

__all__ = ["fault_words", "kind_words"]

_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "bytes": "a text in base64",
    "date": "a date",
    "datetime": "a date with its time",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing (null)",
    "object": "an object",
    "str": "a text",
    "uuid": "a UUID",
}
_WRONG_KIND = re.compile(r"Expected `([\w |]+)`, got `(\w+)`")
_OUT_OF_BOUNDS = re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (-?[\d.e+-]+)")
_WRONG_LENGTH = re.compile(r"Expected `(\w+)` of length (?:(>=|<=) )?(\d+)(?:, got \d+)?")
_WRONG_FORM = re.compile(r"Expected `str` matching regex (.+)", re.DOTALL)
_NO_MULTIPLE = re.compile(r"Expected `\w+` that's a multiple of (\S+)")
_NO_CHOICE = re.compile(r"Invalid enum value (.+)", re.DOTALL)
_BOUNDS = {
    ">=": "must be {} or more",
    "<=": "must be {} or less",
    ">": "must be more than {}",
    "<": "must be less than {}",
}
_LENGTHS = {
    ">=": "must have {} {} or more",
    "<=": "may have {} {} at the most",
    None: "must have {} {}, no more and no fewer",
}
_PARTS = {"str": ("character", "characters"), "array": ("entry", "entries"), "object": ("entry", "entries")}


def fault_words(text: str) -> str:
    """`Expected …, got …` becomes `a list is wanted, this is a text`; other texts stay as they are."""
    if found := _WRONG_KIND.fullmatch(text):
        return f"{kind_words(found[1])} is wanted, this is {kind_words(found[2])}"
    if found := _OUT_OF_BOUNDS.fullmatch(text):
        return _BOUNDS[found[1]].format(found[2].removesuffix(".0"))
    if found := _WRONG_LENGTH.fullmatch(text):
        one, many = _PARTS.get(found[1], ("part", "parts"))
        return _LENGTHS[found[2]].format(found[3], one if found[3] == "1" else many)
    if found := _WRONG_FORM.fullmatch(text):
        return f"does not have the form that is wanted here (the regular expression {found[1]})"
    if found := _NO_MULTIPLE.fullmatch(text):
        return f"must be a multiple of {found[1]}"
    if found := _NO_CHOICE.fullmatch(text):
        return f"{found[1]} is not one of the words that are known here"
    return text[:1].lower() + text[1:]


def kind_words(kinds: str) -> str:
    """msgspec's name of a JSON type (`array`), or of several (`int | null`), with its article."""
    words = [_KINDS.get(kind, kind) for kind in kinds.split(" | ")]
    if "a number" in words and "a whole number" in words:
        words.remove("a whole number")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
