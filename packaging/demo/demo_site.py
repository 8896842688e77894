"""The machines of the demo site: real peers where they can be had, our own simulators where not, and why."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import openipmi
import own_simulators
import sushy_emulator
from bmc import Bmc, Login
from children import Children
from workspace import DemoFailure, Workspace

__all__ = ["DemoSite"]

_REPOSITORY = Path(__file__).resolve().parents[2]
_RECORDED = (
    ("dell-r750-idrac9-7.10", "a recorded Dell R750"),
    ("hpe-dl380a-ilo6", "a recorded HPE DL380a"),
)
_OURS_REDFISH, _OURS_IPMI = "our Redfish server", "our IPMI peer"


@dataclass(frozen=True)
class _Rack:
    login: Login
    serving: Callable[[], list[Bmc]]


class DemoSite:
    """Starts every BMC; `notes` tells what stands in for what."""

    def __init__(
        self, children: Children, workspace: Workspace, *, own_only: bool, password: str | None = None
    ) -> None:
        self._children = children
        self._workspace = workspace
        self._own_only = own_only
        self._password = password
        self._ipmitool = None if own_only else shutil.which("ipmitool")
        self.notes: list[str] = []
        self._racks = list(self._started())
        if self._ipmitool is None:
            self._note("ipmitool", "it is not installed", "the simulators' own journals")

    @property
    def logins(self) -> list[Login]:
        return [rack.login for rack in self._racks]

    def wait_until_serving(self) -> list[Bmc]:
        """All BMCs, once they answer."""
        return [bmc for rack in self._racks for bmc in rack.serving()]

    def _started(self) -> Iterator[_Rack]:
        yield self._sushy_rack(["alder", "birch"])
        yield self._openipmi_rack("cedar")
        own = self._login("rack3")
        yield _Rack(own, self._redfish(["elm", "hazel"], _OURS_REDFISH, own))
        yield from self._recorded_rack("linden")
        ipmi = self._login("rack5")
        yield _Rack(ipmi, self._ipmi(["maple", "oak"], f"{_OURS_IPMI}, suite 17", ipmi, 17))

    def _sushy_rack(self, names: list[str]) -> _Rack:
        login = self._login("rack1")
        program = None if self._own_only else sushy_emulator.find_emulator()
        if program is None:
            self._note("sushy-tools' emulator", ".peers is not there", _OURS_REDFISH)
            return _Rack(login, self._redfish(names, f"{_OURS_REDFISH} (stand-in)", login))
        return _Rack(login, sushy_emulator.start(program, self._children, self._workspace, names, login))

    def _openipmi_rack(self, name: str) -> _Rack:
        login = self._login("rack2")
        program = None if self._own_only else shutil.which("ipmi_sim")
        if program is None:
            self._note("OpenIPMI's ipmi_sim", "the Debian package openipmi is not installed", _OURS_IPMI)
            peer = f"{_OURS_IPMI}, suite {openipmi.SUITE} (stand-in)"
            return _Rack(login, self._ipmi([name], peer, login, openipmi.SUITE))
        serving = openipmi.start(program, self._children, self._workspace, name, login, self._ipmitool)
        return _Rack(login, lambda: [serving()])

    def _recorded_rack(self, name: str) -> Iterator[_Rack]:
        shared = Path(os.environ.get("RACKWRIGHT_SHARED", _REPOSITORY.parent / "shared"))
        for folder, peer in _RECORDED:
            tree = shared / "mockups" / folder
            if (tree / "redfish").is_dir():
                login = self._login("rack4")
                yield _Rack(login, self._redfish([name], peer, login, tree))
                return

    def _redfish(
        self, names: list[str], peer: str, login: Login, tree: Path | None = None
    ) -> Callable[[], list[Bmc]]:
        return own_simulators.start_redfish(self._children, self._workspace, names, peer, login, tree)

    def _ipmi(self, names: list[str], peer: str, login: Login, suite: int) -> Callable[[], list[Bmc]]:
        return own_simulators.start_ipmi(self._children, self._workspace, names, peer, login, suite, self._ipmitool)

    def _login(self, rack: str) -> Login:
        """The credential of one rack; 16 characters, the most that every IPMI BMC takes."""
        password = self._password or secrets.token_hex(8)
        if not password.isascii() or not password.isalnum() or len(password) > 16:
            raise DemoFailure("the BMCs' password is 1 to 16 letters and digits, so that every peer takes it")
        return Login(f"demo/{rack}", self._workspace.secret_file(f"{rack}.password", password), password)

    def _note(self, peer: str, absent: str, stand_in: str) -> None:
        why = "--own-simulators-only" if self._own_only else absent
        verb = "stand" if stand_in.endswith("s") else "stands"
        self.notes.append(f"{stand_in} {verb} in for {peer}: {why}")
