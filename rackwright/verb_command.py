"""A click command for one verb of the API, its options read from the shape of its request."""

import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import msgspec
from msgspec import NODEFAULT, UnsetType, structs

from control_plane.api.shapes.common import PageRequest
from control_plane.api.verbs import Verb, kebab
from protocol.errors import Issue, RequestError

__all__ = ["request_command"]

Run = Callable[[Verb, dict[str, Any], dict[str, Any]], None]
_PAGING = ("limit", "cursor")
_HELP = {
    "siteId": "The site's name or id.",
    "nodeId": "The node's name or id.",
    "agentId": "The agent that serves the site from now on.",
    "name": "Its new name.",
    "bmc.address": "https://host[:port], ipmi://host, ssh://host, simulated://name, or a bare host.",
    "bmc.driver": "By the address where it is left out.",
    "bmc.credentialRef": "The name of a credential in the site agent's vault.",
    "bmc.tls": "verify, ca:/path/on/the/site/host.pem, sha256:<hex>, first-use or none.",
    "labels": "Repeatable.",
    "drivers": "A concern's driver, such as console=ipmi; repeatable.",
    "profiles": "The profile that a verb runs on this node, such as deploy=debian-raid; repeatable.",
    "remediate": "Whether it is brought back when it goes away by itself.",
    "ports": "A port: 'MAC vlan=7 address=192.0.2.5/24 gateway=192.0.2.1 dns=192.0.2.53'; repeatable.",
    "serialConsole": "Where its ramdisk writes its messages, such as ttyS1,115200.",
    "permissions": "Such as 'compute:nodes:*' or 'compute:*:read'; repeatable.",
    "forTenant": "The new token's tenant; * for every one.",
    "ttl": "How long it is good, such as 90s, 15m, 1h or 2d.",
    "createSite": "Make the site where there is none of this name.",
    "reason": "Why; it is kept.",
    "open": "Only those that have not ended.",
    "waitMs": "Wait for the end this long, in milliseconds.",
    "concern": "Only this concern's.",
}


class _Option(NamedTuple):
    """One field of a request, as an option."""

    parameter: str
    path: tuple[str, ...]
    kind: str
    """text, number, flag, pairs, list, or null (the flag that sets a field to null)."""
    flag: str = ""
    """What is typed for it, at its shortest; nothing for an argument."""
    required: bool = False


def request_command(verb: Verb, run: Run) -> click.Command:
    """`run(verb, request, presentation)` is called with the request's body, as JSON values."""
    parameters: list[click.Parameter] = []
    options: list[_Option] = []
    place = verb.subject or ("name" if verb.method == "create" and _has(verb, "name") else None)
    for field in structs.fields(verb.request):
        name = field.encode_name
        if name == "tenantId" or (name in _PAGING and issubclass(verb.request, PageRequest)):
            continue
        if name == place:
            # Named as what it is, not as what it is called on the wire: NODE, not NODE_ID.
            parameter = kebab(name).removesuffix("-id").replace("-", "_")
            parameters.append(click.Argument([parameter], metavar=parameter.upper()))
            options.append(_Option(parameter, (name,), "text"))
        else:
            _add(field, (), parameters, options)
    taken = {option for parameter in parameters for option in parameter.opts}
    presented = [_tenant_option()] if not verb.tenantless and "--tenant" not in taken else []
    presented.append(click.Option(["--json", "as_json"], is_flag=True, help="The whole answer, as JSON."))
    if issubclass(verb.request, PageRequest):
        presented += [
            click.Option(["--limit"], type=click.IntRange(1), default=100, show_default=True, help="Rows at most."),
            click.Option(["--all", "every"], is_flag=True, help="Every row."),
            click.Option(["--wide"], is_flag=True, help="Show every column, whatever the terminal's width."),
        ]
    shown = [str(option.name) for option in presented]

    def callback(**values: Any) -> None:
        presentation = {name: values.pop(name) for name in shown}
        run(verb, _request(options, values), presentation)

    summary = verb.summary[:1].upper() + verb.summary[1:] + "."
    return click.Command(
        kebab(verb.method), callback=callback, params=[*parameters, *presented], help=summary, short_help=summary
    )


def _tenant_option() -> click.Option:
    return click.Option(["--tenant"], help="Whose; needed by a token that is good for every tenant.")


def _add(
    field: structs.FieldInfo, path: tuple[str, ...], parameters: list[click.Parameter], options: list[_Option]
) -> None:
    members = _members(field.type)
    nested = next((m for m in members if isinstance(m, type) and issubclass(m, msgspec.Struct)), None)
    full = (*path, field.encode_name)
    if nested is not None:
        for inner in structs.fields(nested):
            _add(inner, full, parameters, options)
        return
    kind = _kind(members)
    flags = _flags(full, kind)
    taken = {flag for parameter in parameters for flag in parameter.opts}
    parameter = "__".join(full)
    settings: dict[str, Any] = {"default": None}
    if kind == "flag":
        settings = {"is_flag": True, "default": None}
    elif kind in ("pairs", "list"):
        settings = {"multiple": True, "metavar": "KEY=VALUE" if kind == "pairs" else "TEXT"}
    elif kind == "number":
        settings["type"] = int
    elif choices := _choices(members):
        settings["type"] = click.Choice(choices)
    required = not path and field.default is NODEFAULT and field.default_factory is NODEFAULT
    required = required or (bool(path) and field.default is NODEFAULT)
    names = [flag for flag in flags if flag not in taken]
    help_text = _HELP.get(".".join(full))
    parameters.append(click.Option([*names, parameter], required=required, help=help_text, **settings))
    options.append(_Option(parameter, full, kind, names[-1], required))
    if type(None) in members and UnsetType in members:
        parameters.append(
            click.Option(
                [f"--no-{names[-1].removeprefix('--')}", f"null__{parameter}"], is_flag=True, help="Take it away."
            )
        )
        options.append(_Option(f"null__{parameter}", full, "null"))


def _flags(path: tuple[str, ...], kind: str) -> list[str]:
    """`--site-id` and, shorter, `--site`; `--bmc-address` and `--address`; `--label` for labels."""
    if path == ("drivers",):
        return ["--driver-of"]
    words = [kebab(word) for word in path]
    if kind in ("pairs", "list"):
        words[-1] = words[-1].removesuffix("s")
    long = "-".join(words)
    short = words[-1] if len(words) > 1 and words[-1] != "driver" else long.removesuffix("-id")
    return [f"--{name}" for name in dict.fromkeys((long, short))]


def _members(kind: Any) -> list[Any]:
    """The plain types that a field may have."""
    if typing.get_origin(kind) is typing.Annotated:
        return _members(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [member for listed in typing.get_args(kind) for member in _members(listed)]
    return [kind]


def _kind(members: list[Any]) -> str:
    if bool in members:
        return "flag"
    origins = [typing.get_origin(member) for member in members]
    if dict in origins:
        return "pairs"
    if list in origins:
        return "list"
    return "number" if int in members and str not in members else "text"


def _choices(members: list[Any]) -> list[str]:
    for member in members:
        if typing.get_origin(member) is typing.Literal:
            return [str(value) for value in typing.get_args(member)]
    return []


def _request(options: list[_Option], values: dict[str, Any]) -> dict[str, Any]:
    """The body: what was given, where it belongs. Raises RequestError for what is missing or no pair."""
    body: dict[str, Any] = {}
    issues = [
        Issue(option.flag, "is required", _HELP.get(".".join(option.path), "").removesuffix("."))
        for option in options
        if option.required and values[option.parameter] is None
    ]
    for option in options:
        value = values[option.parameter]
        if value is None or value is False or value == ():
            continue
        if option.kind == "pairs":
            value = _pairs(option, value, issues)
        elif option.kind == "list":
            value = list(value)
        into = body
        for name in option.path[:-1]:
            into = into.setdefault(name, {})
        into[option.path[-1]] = None if option.kind == "null" else value
    if issues:
        raise RequestError.invalid(issues, "the command line")
    return body


def _pairs(option: _Option, words: tuple[str, ...], issues: list[Issue]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, separator, value = word.partition("=")
        if separator:
            pairs[key] = value
        else:
            issues.append(Issue(".".join(option.path), f"{word!r} is not of the form key=value"))
    return pairs


def _has(verb: Verb, name: str) -> bool:
    return any(field.encode_name == name for field in structs.fields(verb.request))
