"""The control resource `/_simulator/…`: faults, journal and state over HTTP, for tests in other languages.

It exists only where it was enabled, asks for no login, and is in no journal.
"""

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from simulators.redfish.documents import Answer, Request, decode
from simulators.redfish.faults import FaultBook, FaultFileError, parse_rules
from simulators.redfish.journal import RequestJournal
from simulators.redfish.power import PowerState
from simulators.redfish.state import MachineState

CONTROL_ROOT = "/_simulator"
HEALTH = ("OK", "Warning", "Critical")


class Controlled(Protocol):
    """What the control resource works on."""

    faults: FaultBook
    journal: RequestJournal
    state: MachineState
    controls: dict[str, Callable[[Request], Answer]]


def control(server: Controlled, request: Request) -> Answer:
    """Answers one request to the control resource."""
    steps = request.path.removeprefix(CONTROL_ROOT).strip("/").split("/")
    kind, name = steps[0], "/".join(steps[1:])
    if kind == "faults":
        return control_faults(server.faults, request, name)
    if kind == "journal" and not name:
        return control_journal(server.journal, request)
    if kind == "state" and not name and request.method == "GET":
        return Answer.of(200, state_document(server.state))
    if kind == "state" and not name and request.method == "POST":
        return set_state(server.state, request)
    if kind in server.controls and not name:
        return server.controls[kind](request)
    if kind == "" and request.method == "GET":
        words = ("faults", "journal", "state", *server.controls)
        return Answer.of(200, {"resources": [f"{CONTROL_ROOT}/{word}" for word in words]})
    return Answer.of(404, {"error": f"no such control resource: use {CONTROL_ROOT}/faults, /journal or /state"})


def control_faults(book: FaultBook, request: Request, name: str) -> Answer:
    if request.method == "GET" and not name:
        return Answer.of(200, {"faults": book.rules()})
    if request.method == "DELETE":
        if name:
            book.remove(name)
        else:
            book.clear()
        return Answer(204)
    if request.method == "POST" and not name:
        try:
            document: Any = decode(request.body)
        except msgspec.DecodeError as fault:
            return Answer.of(400, {"error": f"the body is not JSON: {fault}"})
        rules = document.get("faults", [document]) if isinstance(document, dict) else document
        try:
            parsed = parse_rules(rules if isinstance(rules, list) else [rules], "the request")
        except FaultFileError as fault:
            return Answer.of(400, {"error": str(fault)})
        return Answer.of(201, {"names": [book.add(rule) for rule in parsed]})
    return Answer.of(405, {"error": "use GET, POST or DELETE"}, {"Allow": "GET, POST, DELETE"})


def control_journal(journal: RequestJournal, request: Request) -> Answer:
    if request.method == "DELETE":
        journal.clear()
        return Answer(204)
    if request.method != "GET":
        return Answer.of(405, {"error": "use GET or DELETE"}, {"Allow": "GET, DELETE"})
    wanted = dict(parse_qsl(request.query))
    entries = journal.entries(wanted.get("method", "*"), wanted.get("path", "*"))
    return Answer.of(200, {"total": journal.total, "entries": entries})


def set_state(state: MachineState, request: Request) -> Answer:
    """`{"power": "Off", "health": "Critical"}`: what a hand on the machine, or a part that fails, would do."""
    wanted = request.json_object() or {}
    power, health = wanted.get("power"), wanted.get("health")
    if (power is None and health is None) or (power is not None and power not in set(PowerState)):
        return Answer.of(400, {"error": f"give power ({', '.join(PowerState)}) or health (OK, Warning, Critical)"})
    if health is not None and health not in HEALTH:
        return Answer.of(400, {"error": f"health is one of {', '.join(HEALTH)}"})
    if power is not None:
        state.set_power(PowerState(power))
    if health is not None:
        state.set_health(health)
    return Answer.of(200, state_document(state))


def state_document(state: MachineState) -> dict[str, Any]:
    return {
        "power": {system: state.power(system) for system in state.systems},
        "boot_override": {system: state.boot_override(system) for system in state.systems},
        "media": list(state.media.values()),
        "resets": state.resets,
        "manager_resets": state.manager_resets,
        "boots": state.boots,
        "open_sessions": state.open_sessions,
    }
