"""BMCs by our own simulators: `rackwright simulate redfish` and `rackwright simulate ipmi`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bmc import USER, Bmc, BmcProtocol, Login, Witness
from children import RACKWRIGHT, Child, Children
from ipmi_witness import IpmitoolWitness, SimulatorJournal
from redfish_witness import RedfishWitness
from workspace import Workspace

__all__ = ["start_ipmi", "start_redfish"]

_POWER_SECONDS = "1"


def start_redfish(
    children: Children, workspace: Workspace, names: list[str], peer: str, login: Login, tree: Path | None = None
) -> Callable[[], list[Bmc]]:
    """Redfish BMCs over TLS, one for each name. Call what is returned to wait until they serve."""
    words = [*RACKWRIGHT, "simulate", "redfish", "--host", workspace.address, "--count", str(len(names))]
    words += ["--user", USER, "--password-file", str(login.password_file), "--control"]
    words += ["--power-seconds", _POWER_SECONDS, *(["--tree", str(tree)] if tree else [])]
    child = children.start(f"redfish-{names[0]}", words)

    def serving() -> list[Bmc]:
        fingerprint = _printed(child, r"^certificate SHA-256 (\w+)", 1)[0]
        urls = _printed(child, r"^(https://\S+)", len(names))
        return [
            Bmc(name, peer, BmcProtocol.REDFISH, url, login, RedfishWitness(url, login, _resets_taken, fingerprint))
            for name, url in zip(names, urls, strict=True)
        ]

    return serving


def start_ipmi(
    children: Children,
    workspace: Workspace,
    names: list[str],
    peer: str,
    login: Login,
    suite: int,
    ipmitool: str | None,
) -> Callable[[], list[Bmc]]:
    """IPMI BMCs of one cipher suite, whose machines are off; they are read back by ipmitool where it is given."""
    journal = workspace.folder / f"ipmi-{names[0]}.journal"
    words = [*RACKWRIGHT, "simulate", "ipmi", "--host", workspace.address, "--count", str(len(names)), "--off"]
    words += ["--user", USER, "--password-file", str(login.password_file)]
    words += ["--suites", str(suite), "--journal", str(journal)]
    child = children.start(f"ipmi-{names[0]}", words)

    def witness(place: str) -> Witness:
        if ipmitool is None:
            return SimulatorJournal(journal, place)
        host, _, port = place.rpartition(":")
        return IpmitoolWitness(ipmitool, host, int(port), login, suite, _system_boots)

    def serving() -> list[Bmc]:
        places = _printed(child, r"^ipmi://(127\.\S+:\d+)$", len(names))
        return [
            Bmc(name, peer, BmcProtocol.IPMI, f"ipmi://{place}", login, witness(place))
            for name, place in zip(names, places, strict=True)
        ]

    return serving


def _printed(child: Child, pattern: str, count: int) -> list[str]:
    def found() -> list[str] | None:
        lines = re.findall(pattern, child.said(), re.MULTILINE)
        return lines if len(lines) >= count else None

    return child.wait_until("did not say where it serves", found)


def _resets_taken(get: Callable[[str], Any]) -> int:
    """Restarts in the journal of requests that were carried out."""
    entries = get("/_simulator/journal?method=POST&path=*ComputerSystem.Reset")["entries"]
    return sum(
        bool(entry["executed"]) and re.search("Restart|Cycle", entry["body"]["ResetType"]) is not None
        for entry in entries
    )


def _system_boots(ask: Callable[..., str]) -> int:
    """A restart leaves a System Boot entry in the event log."""
    return sum("System Boot" in line for line in ask("sel", "list").splitlines())
