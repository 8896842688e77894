"""Query parameters of a GET (DSP0266, Query parameters): carried out where the tree's service root says so."""

import operator
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from simulators.redfish.documents import JsonObject, Request, decode, linked_path
from simulators.redfish.errors import Message, RedfishError

Reader = Callable[[str], JsonObject | None]
MemberReader = Callable[[Request, str], JsonObject | None]
"""What a request gets to see of a resource that it has expanded; None leaves the link as it is."""

_EXPAND = re.compile(r"^([*.~])(?:\(\$levels=(\d+)\))?$")
_COMPARISON = re.compile(r"^\s*([A-Za-z0-9_/@.]+)\s+(eq|ne|gt|ge|lt|le)\s+('(?:[^']|'')*'|[^\s]+)\s*$")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


def apply_query(document: JsonObject, query: str, features: JsonObject, read: Reader) -> JsonObject:
    """The document as the query wants it.

    `features` is the root's ProtocolFeaturesSupported. RedfishError 501 for a `$` parameter that the
    service does not support, 400 for a value it cannot use; other unknown parameters are ignored.
    """
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    for name in parameters:
        if name.startswith("$") and not is_supported(name, features):
            raise RedfishError(
                501, Message("QueryNotSupported", f"The query parameter {name} is not supported.", args=(name,))
            )
    for name, feature in (("only", "OnlyMemberQuery"), ("excerpt", "ExcerptQuery")):
        if name in parameters and features.get(feature) and parameters[name]:
            raise invalid_query(name, parameters[name])
    if "only" in parameters and features.get("OnlyMemberQuery"):
        document = only_member(document, read)
    if "$filter" in parameters:
        document = filtered(document, parameters["$filter"], read)
    document = paged(document, parameters)
    if "$expand" in parameters:
        document = expanded(document, parameters["$expand"], features.get("ExpandQuery") or {}, read)
    if "$select" in parameters:
        document = selected(document, parameters["$select"])
    return document


def is_supported(name: str, features: JsonObject) -> bool:
    if name == "$expand":
        expand = features.get("ExpandQuery")
        return isinstance(expand, dict) and any(expand.get(key) for key in ("ExpandAll", "Links", "NoLinks"))
    feature = {
        "$select": "SelectQuery",
        "$filter": "FilterQuery",
        "$top": "TopSkipQuery",
        "$skip": "TopSkipQuery",
    }.get(name)
    return feature is not None and bool(features.get(feature))


def only_member(document: JsonObject, read: Reader) -> JsonObject:
    members = document.get("Members")
    if not isinstance(members, list):
        raise RedfishError(400, Message("QueryNotSupportedOnResource", "The parameter only is for collections."))
    path = linked_path(members[0]) if len(members) == 1 else None
    return (read(path) if path else None) or document


def paged(document: JsonObject, parameters: dict[str, str]) -> JsonObject:
    if not {"$top", "$skip"} & parameters.keys():
        return document
    numbers: dict[str, int] = {}
    for name in ("$top", "$skip"):
        text = parameters.get(name)
        if text is None:
            continue
        if not text.isdigit():
            raise invalid_query(name, text)
        numbers[name] = int(text)
    members = document.get("Members")
    if not isinstance(members, list):
        raise RedfishError(400, Message("QueryNotSupportedOnResource", "$top and $skip are for collections."))
    start = numbers.get("$skip", 0)
    return {**document, "Members": members[start : start + numbers.get("$top", len(members))]}


def expanded(document: JsonObject, value: str, features: JsonObject, read: Reader) -> JsonObject:
    """Links replaced by what they lead to: `.` all but those in Links, `~` only those in Links, `*` both."""
    match = _EXPAND.match(value)
    if match is None:
        raise invalid_query("$expand", value)
    kind, levels = match.group(1), int(match.group(2) or 1)
    if not features.get({"*": "ExpandAll", ".": "NoLinks", "~": "Links"}[kind]):
        raise RedfishError(501, Message("QueryNotSupported", f"$expand={kind} is not supported."))
    if levels < 1 or levels > int(features.get("MaxLevels") or 1):
        raise invalid_query("$expand", value)

    def walk(node: Any, level: int, in_links: bool, top: bool) -> Any:
        if isinstance(node, list):
            return [walk(element, level, in_links, False) for element in node]
        if not isinstance(node, dict):
            return node
        target = linked_path(node)
        wanted = kind == "*" or (kind == "~") == in_links
        if not top and target and len(node) == 1:
            found = read(target) if wanted and "#" not in target else None
            if found is None or found.keys() == {"error"}:
                return node
            return walk(found, level - 1, False, True) if level > 1 else found
        return {
            name: inner if name == "Actions" else walk(inner, level, in_links or name == "Links", False)
            for name, inner in node.items()
        }

    result = walk(document, levels, False, True)
    return result if isinstance(result, dict) else document


def selected(document: JsonObject, value: str) -> JsonObject:
    """Only the named properties, and the OData annotations that are always there."""
    wanted = [name.strip().replace(".", "/") for name in value.split(",") if name.strip()]
    if not wanted:
        raise invalid_query("$select", value)
    if "*" in wanted:
        return document
    result = {name: inner for name, inner in document.items() if name.startswith("@odata.")}
    for path in wanted:
        copy_path(document, result, path.split("/"))
    return result


def copy_path(source: Any, target: JsonObject, steps: list[str]) -> None:
    if not isinstance(source, dict) or steps[0] not in source:
        return
    step, rest = steps[0], steps[1:]
    if not rest or not isinstance(source[step], dict):
        target[step] = source[step]
        return
    copy_path(source[step], target.setdefault(step, {}), rest)


def filtered(document: JsonObject, value: str, read: Reader) -> JsonObject:
    """Members that satisfy comparisons joined by `and` (or by `or`): what log readers use."""
    members = document.get("Members")
    if not isinstance(members, list):
        raise RedfishError(400, Message("QueryNotSupportedOnResource", "$filter is for collections."))
    joiner = " or " if " or " in value else " and "
    tests = [comparison(part) for part in value.split(joiner)]
    decide = any if joiner == " or " else all

    def kept(member: Any) -> bool:
        target = linked_path(member)
        body = member if isinstance(member, dict) and len(member) > 1 else (read(target) if target else None)
        return decide(test(body or {}) for test in tests)

    remaining = [member for member in members if kept(member)]
    return {**document, "Members": remaining, "Members@odata.count": len(remaining)}


def comparison(text: str) -> Callable[[JsonObject], bool]:
    match = _COMPARISON.match(text.strip().removeprefix("(").removesuffix(")"))
    if match is None:
        raise invalid_query("$filter", text)
    path, sign, literal = match.groups()
    wanted: Any = literal[1:-1].replace("''", "'") if literal.startswith("'") else decode_literal(literal)
    compare = _OPERATORS[sign]

    def test(body: JsonObject) -> bool:
        value: Any = body
        for step in path.split("/"):
            value = value.get(step) if isinstance(value, dict) else None
        try:
            return compare(value, wanted)
        except TypeError:
            return False

    return test


def decode_literal(text: str) -> Any:
    try:
        return decode(text.encode())
    except ValueError:
        return text


def invalid_query(name: str, value: str) -> RedfishError:
    return RedfishError(
        400,
        Message(
            "QueryParameterValueFormatError",
            f"The value {value} of the query parameter {name} cannot be used.",
            args=(value, name),
        ),
    )
