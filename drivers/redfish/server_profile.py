"""Dell's server configuration profile: exported as a task whose end is the document, imported as a job.

Source: Dell's Server Configuration Profile guide, and dell/iDRAC-Redfish-Scripting
(ExportSystemConfigurationLocalREDFISH, ImportSystemConfigurationLocalREDFISH): the document comes in place of the
task once that has ended. Values of passwords and keys never leave this module.
"""

import html
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from drivers.driver import Call
from drivers.redfish.boot import unproven
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, allowed_values, dig, link, link_target
from drivers.redfish.failures import Refused
from drivers.redfish.task_view import Stage, TaskView
from drivers.redfish.tasks import Outcome, follow_task, task_named_by
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.config import (
    ExportConfig,
    ExportConfigResult,
    HostRestart,
    ImportConfig,
    ImportConfigResult,
)

__all__ = ["MASK", "export_profile", "import_profile", "importable", "is_secret", "masked", "profile_action"]

MASK = "******"
_SECRET = re.compile(
    r"passw|passphrase|secret|community|salt|token$|(encryption|private|shared|md5v3|sha1v3|ipmi)key$|securitykey$"
    r"|authkey|privkey|pinvalue",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"(enable|length|policy|state|status|expir\w*|type|required|count|minimum\w*|score)$", re.IGNORECASE
)
"""What is said about a password, and is none."""
_XML_ATTRIBUTE = re.compile(
    r"""(<Attribute\b[^<>]*?\sName\s*=\s*["']([^"'<>]*)["'][^<>]*(?<!/)>)([^<]*)(</Attribute\s*>)"""
)
"""No part of it runs past the next tag, so that many broken attributes take no more than their number."""
_CDATA = "<![CDATA["
_SHUTDOWN = {HostRestart.NONE: "NoReboot", HostRestart.GRACEFUL: "Graceful", HostRestart.FORCED: "Forced"}
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
_DEEPEST = 100


def profile_action(manager: Document, name: str) -> Document | None:
    """The action of this name, under whichever version of its schema (#OemManager.v1_4_0.OemManager#OemManager.…)."""
    offered = dig(manager, "Actions", "Oem")
    for key, found in offered.items() if isinstance(offered, dict) else ():
        if isinstance(key, str) and key.rpartition(".")[2] == name and isinstance(found, dict) and link_target(found):
            return found
    return None


def is_secret(name: str) -> bool:
    """Whether an attribute's value is a password, a key or what stands for one."""
    own = name.rpartition("#")[2].rpartition(".")[2]
    return bool(_SECRET.search(own)) and not _HARMLESS.search(own)


def masked(document: str) -> tuple[str, list[str]]:
    """The profile with every secret's value masked, and the names of those that were; JSON and XML alike."""
    return _walked(document, lambda _name, value: MASK if value else value)


def importable(document: str) -> str:
    """The profile without what is masked in it: the mask must not become a password.

    Raises OperationError INVALID_ARGUMENT for a document that is none, or that holds a secret in clear.
    """
    clear: list[str] = []

    def leave_out(name: str, value: str) -> str | None:
        if value and set(value) != {"*"}:
            clear.append(name)
        return None if value else value

    found, _ = _walked(document, leave_out)
    if clear:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"document: holds {', '.join(clear)} in clear, which would be stored with the command: take "
            "them out, and change passwords with config.rotatePassword",
        )
    return found


async def export_profile(
    connection: RedfishConnection, manager: Document, wanted: ExportConfig, call: Call
) -> ExportConfigResult:
    """The profile as the BMC writes it. Raises UNSUPPORTED with the reason, TIMEOUT, and what the task says."""
    offered = _offered(manager, "ExportSystemConfiguration")
    formats = allowed_values(offered, "ExportFormat")
    as_json = not formats or "JSON" in formats
    part = wanted.part or "ALL"
    parts = allowed_values(dig(offered, "ShareParameters"), "Target")
    if parts and part not in parts:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"part: {part!r} is none of this BMC's: {', '.join(parts)}")
    body = {"ExportFormat": "JSON" if as_json else "XML", "ShareParameters": {"Target": part}}
    answer = await connection.order(link_target(offered) or "", body, call, look=link(manager) or "")
    name = task_named_by(answer)
    paths = [path for path in (name.task, name.monitor) if path is not None] if name is not None else []
    if not paths:
        raise OperationError(ErrorCode.BMC_ERROR, "the BMC took the export, and named no task for it")
    document = await _document_of(connection, paths, call)
    hidden, names = masked(document)
    return ExportConfigResult(
        document=hidden, format="dell-scp-json" if document.lstrip().startswith("{") else "dell-scp-xml", masked=names
    )


async def import_profile(
    connection: RedfishConnection, manager: Document, wanted: ImportConfig, call: Call
) -> ImportConfigResult:
    """Gives the BMC the profile, once, and follows its job. Raises what the job says where it failed;
    OUTCOME_UNKNOWN where the answer is lost, or is a server error that does not say that nothing was done."""
    offered = _offered(manager, "ImportSystemConfiguration")
    document = importable(wanted.document)
    body = {
        "ImportBuffer": document,
        "ShareParameters": {"Target": "ALL"},
        "ShutdownType": _SHUTDOWN[wanted.restart],
        "HostPowerState": "On",
    }
    try:
        answer = await connection.order(link_target(offered) or "", body, call, look=link(manager) or "")
    except Refused as refused:
        if refused.certainly_not_done:
            raise
        raise refused.as_lost() from refused
    ending = await follow_task(connection, answer, call)
    if ending.outcome is Outcome.FAILED:
        raise unproven(answer, "the profile", f"its job failed ({ending.path})", ending.words)
    if ending.outcome is Outcome.UNKNOWN:
        raise OperationError(
            ErrorCode.OUTCOME_UNKNOWN,
            "the BMC took the profile, and named no job whose end would tell what became of it",
            bmc=ending.words,
        )
    return ImportConfigResult(task=ending.path, reset_owed=ending.outcome is Outcome.STAGED)


def _offered(manager: Document, name: str) -> Document:
    found = profile_action(manager, name)
    if found is None:
        raise OperationError(
            ErrorCode.UNSUPPORTED,
            f"this BMC has no {name}: a profile of the whole machine is Dell's own; config, bios and raid "
            "operations do the same piece by piece",
        )
    return found


async def _document_of(connection: RedfishConnection, paths: list[str], call: Call) -> str:
    """Reads the task until the document comes in its place."""
    pause, last = _FIRST_PAUSE, "nothing"
    while True:
        for path in paths:
            try:
                answer = await connection.read(path, call)
            except Refused as refused:
                if not refused.absent:
                    raise
                continue
            if b"SystemConfiguration" in answer.body[:4096]:
                return answer.body.decode("utf-8", "replace")
            said = answer.said()
            view = TaskView.of(said) if isinstance(said, dict) else None
            if view is not None and view.stage is Stage.FAILED:
                raise OperationError(ErrorCode.NOT_APPLIED, f"the export failed: {view.says}", bmc=view.words)
            if view is not None:
                last = view.says
                call.progress(f"exporting: {view.says}", view.percent)
        if pause >= call.remaining:
            raise OperationError(ErrorCode.TIMEOUT, f"the export did not end in time; its task last said: {last}")
        await call.sleep(pause, "the BMC was writing its profile")
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _walked(document: str, change: Callable[[str, str], str | None]) -> tuple[str, list[str]]:
    """The document with the secrets' values changed (None takes the attribute out), and their names."""
    text = document.strip()
    if text.startswith("{"):
        return _walked_json(text, change)
    text = _without_cdata(text)
    if "<SystemConfiguration" not in text:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, "document: is no server configuration profile (JSON or XML)")
    names: list[str] = []

    def replaced(found: re.Match[str]) -> str:
        if not is_secret(found[2]):
            return found[0]
        value = change(found[2], found[3].strip())
        if value is not None and value != found[3]:
            names.append(found[2])
        return "" if value is None else f"{found[1]}{value}{found[4]}"

    return _XML_ATTRIBUTE.sub(replaced, text), names


def _without_cdata(text: str) -> str:
    """The same XML with its CDATA sections as plain text, so that no secret stands in one unseen."""
    first, *others = text.split(_CDATA)
    parts = [first]
    for other in others:
        content, end, rest = other.partition("]]>")
        if not end:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT, "document: is broken XML (a CDATA section without an end)"
            )
        parts += [html.escape(content, quote=False), rest]
    return "".join(parts)


def _walked_json(text: str, change: Callable[[str, str], str | None]) -> tuple[str, list[str]]:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"document: is no JSON ({error})") from None
    if not isinstance(dig(document, "SystemConfiguration"), dict):
        raise OperationError(ErrorCode.INVALID_ARGUMENT, "document: has no SystemConfiguration")
    names: list[str] = []

    def walk(value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            # What is not looked at might hold a secret.
            raise OperationError(ErrorCode.INVALID_ARGUMENT, f"document: is nested more than {_DEEPEST} levels deep")
        if isinstance(value, list):
            kept = [item for item in value if not (isinstance(item, dict) and is_out(item))]
            value[:] = kept
            for item in kept:
                walk(item, depth + 1)
        elif isinstance(value, dict):
            for item in value.values():
                walk(item, depth + 1)

    def is_out(attribute: dict[str, Any]) -> bool:
        name, value = attribute.get("Name"), attribute.get("Value")
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A PIN may come as a number.
            value = str(value)
        if not isinstance(name, str) or not isinstance(value, str) or not is_secret(name):
            return False
        changed = change(name, value)
        if changed is None:
            return True
        if changed != value:
            names.append(name)
        attribute["Value"] = changed
        return False

    walk(document, 0)
    try:
        return msgspec.json.encode(document).decode(), names
    except UnicodeEncodeError:
        # Half a character, which JSON may hold as an escape and UTF-8 not at all: it stays an escape.
        return json.dumps(document), names
