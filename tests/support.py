"""What each driver does at each BMC that there is data of: tried, and written down in docs/support.md.

    python -m tests.support      tries everything and writes the file

Every operation of the Redfish driver is tried on our server loaded with each recorded tree, and every one of the IPMI
driver on our simulated BMC. The columns of peers that nobody here wrote, and of the vendors' command lines, are the
tables that their own tests hold against them. `tests/test_support.py` fails where the file says something else.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from drivers import Drivers, Target, load, operations_of
from drivers.ssh.shells import SHELLS
from protocol.errors import ErrorCode, OperationError
from simulators.ipmi.accounts import User
from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.server import IpmiServer
from simulators.redfish.tree import OWN_TREE
from tests.drivers.ends import ended
from tests.drivers.ipmi.peer_table import IPMI_SIM
from tests.drivers.redfish.emulator_table import EMULATOR
from tests.drivers.redfish.every_operation import OWN, Unprepared, perform, recorded
from tests.drivers.redfish.harness import Bench, SkippingLoop, bench

__all__ = ["FAMILIES", "FILE", "Trial", "Verdict", "document", "try_ipmi", "try_tree"]

REPOSITORY = Path(__file__).resolve().parent.parent
FILE = REPOSITORY / "docs" / "support.md"


class Verdict(StrEnum):
    YES = "yes"
    NO = "no"
    UNTRIED = "–"


@dataclass(frozen=True)
class Trial:
    """How an operation ended at one BMC. `words`: why it is no yes."""

    verdict: Verdict
    words: str = ""


Trials = Mapping[str, Trial]

FAMILIES: Mapping[str, Mapping[str, str]] = {
    "Dell": {"iDRAC 9 6.00": "dell-r750-idrac9-6.00", "iDRAC 9 7.10": "dell-r750-idrac9-7.10"},
    "HPE": {"iLO 5": "hpe-dl385-ilo5", "iLO 6": "hpe-dl380a-ilo6"},
    "Lenovo": {"XCC": "lenovo-sr670v2-xcc"},
    "Supermicro": {"X10": "supermicro-x10", "821GE": "supermicro-821ge"},
    "AMI MegaRAC": {"Gigabyte H262": "gigabyte-h262-megarac", "DGX H100": "nvidia-dgx-h100-ami"},
    "NVIDIA": {"GH200": "nvidia-gh200-openbmc", "BlueField-3": "nvidia-bluefield3"},
    "OpenBMC": {"2.15": "openbmc-stock"},
    "HPE Cray": {"EX235a": "cray-ex235a"},
    "Intel": {"S2600BPB": "intel-s2600bpb"},
    "Cisco": {},
    "Fujitsu": {},
    "Huawei": {},
}
OTHERS: Mapping[str, Mapping[str, str]] = {
    "DMTF mock-ups": {"rackmount1": "dmtf-rackmount1", "tower": "dmtf-tower", "catfish": "dmtf-catfish"},
    "our own server": {"": ""},
}
NOT_TOLD: Mapping[tuple[str, str], str] = {
    ("intel-s2600bpb", "bios.setBios"): "its settings object was recorded without attributes",
}
"""What a tree does not tell, so that nothing can be tried on it."""
_RAID_CHANGES = ("raid.applyRaid", "raid.createVolume", "raid.deleteVolume", "raid.clearRaid")


def try_tree(folder: Path) -> dict[str, Trial]:
    """Every operation of the Redfish driver on our server loaded with this tree, each on a machine of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        image = Path(scratch) / "bmc-2.14.0.bin"
        image.write_bytes(b"firmware" * 1000)

        async def run() -> dict[str, Trial]:
            return {operation: await _try(operation, folder, image) for operation in OWN}

        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            return runner.run(run())


async def _try(operation: str, folder: Path, image: Path) -> Trial:
    async with bench(recorded(folder)) as bmc:
        trial = await _trial_of(operation, folder.name, bmc, image)
        assert [entry.path for entry in bmc.bmc.journal.entries("POST") if "If-Match" in entry.headers] == []
        await bmc.drivers.aclose()
        assert bmc.bmc.state.open_sessions == [], f"{operation} left a session behind"
        return trial


async def _trial_of(operation: str, tree: str, bmc: Bench, image: Path) -> Trial:
    if operation in _RAID_CHANGES and not await _has_raid(bmc):
        return Trial(Verdict.UNTRIED, "the recorded machine has no RAID controller")
    end = await ended(perform(operation, bmc, image=image))
    if not isinstance(end, OperationError):
        return Trial(Verdict.YES)
    if isinstance(end, Unprepared):
        return Trial(Verdict.UNTRIED, end.message)
    if (tree, operation) in NOT_TOLD:
        return Trial(Verdict.UNTRIED, NOT_TOLD[tree, operation])
    return Trial(Verdict.NO, _unsupported(end, f"{operation} on {tree}"))


def _unsupported(error: OperationError, what: str) -> str:
    """Why the BMC does not offer it. AssertionError for any other end."""
    if error.code is not ErrorCode.UNSUPPORTED:
        raise AssertionError(f"{what} ended in {error}") from error
    return error.message


async def _has_raid(bmc: Bench) -> bool:
    reading = await ended(bmc("raid.getRaid"))
    if isinstance(reading, OperationError):
        _unsupported(reading, "raid.getRaid")
        return False
    return any(controller["unsuitable"] is None for controller in reading["controllers"])


def try_ipmi() -> dict[str, Trial]:
    """Every operation of the IPMI driver at our simulated BMC."""
    return asyncio.run(_try_ipmi())


async def _try_ipmi() -> dict[str, Trial]:
    trials: dict[str, Trial] = {}
    for operation in operations_of(load("ipmi")):
        users = [User("admin", b"Pl4nted-Secret")]
        async with IpmiServer(IpmiBmc(users=users)) as server, Drivers() as drivers:
            target = Target(address=f"ipmi://127.0.0.1:{server.port}", username="admin", password="Pl4nted-Secret")
            row = IPMI_SIM[operation]
            end = await ended(drivers.invoke(target, operation, row.arguments, rotation=row.rotation))
            trials[operation] = (
                Trial(Verdict.NO, _unsupported(end, operation))
                if isinstance(end, OperationError)
                else Trial(Verdict.YES)
            )
    return trials


def cell(trials: Mapping[str, Trials], operation: str) -> str:
    """One cell of a family: `yes`, `no`, or which of its BMCs say yes."""
    if not trials:
        return "not tested"
    verdicts = {label: found[operation].verdict for label, found in trials.items()}
    if len(set(verdicts.values())) == 1:
        return next(iter(verdicts.values())).value
    able = [label for label, verdict in verdicts.items() if verdict is Verdict.YES]
    if able:
        return f"yes: {', '.join(able)}"
    return "no"


def table(operations: Sequence[str], columns: Mapping[str, Mapping[str, Trials]]) -> list[str]:
    rows = [f"| operation | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    rows += [
        f"| {operation} | {' | '.join(cell(found, operation) for found in columns.values())} |"
        for operation in operations
    ]
    return rows


def reasons(trials: Mapping[str, Trials]) -> list[str]:
    """Why it is no yes, by BMC: each reason once, with the operations that it stands for."""
    lines = []
    for name, found in trials.items():
        why: dict[str, list[str]] = {}
        for operation, trial in found.items():
            if trial.verdict is not Verdict.YES:
                words = trial.words.partition(": a profile of the whole machine")[0]
                why.setdefault(words, []).append(operation)
        if why:
            lines += [f"- **{name}**", *(f"  - {', '.join(listed)}: {words}" for words, listed in why.items())]
    return lines


def document(mockups: Path) -> str:
    """The text of docs/support.md."""

    def of(families: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Trials]]:
        return {
            family: {label: cached_tree(mockups / tree if tree else OWN_TREE) for label, tree in members.items()}
            for family, members in families.items()
        }

    vendors, others = of(FAMILIES), of(OTHERS)
    others["sushy-tools"] = {"": emulator_column()}
    ipmi: dict[str, dict[str, Trials]] = {
        "our simulated BMC": {"": try_ipmi()},
        "`ipmi_sim`": {"": ipmi_sim_column()},
    }
    ssh_operations = operations_of(load("ssh"))
    yes: Trials = {operation: Trial(Verdict.YES) for operation in ssh_operations}
    shells: dict[str, dict[str, Trials]] = {shell.who: {"": yes} for shell in SHELLS} | {"OpenSSH": {"": yes}}
    redfish_reasons = {
        f"{family} {label}".strip(): found for family, members in vendors.items() for label, found in members.items()
    }
    parts = {
        "vendors": table(OWN, vendors),
        "others": table(OWN, others),
        "reasons": reasons(redfish_reasons),
        "ipmi": table(operations_of(load("ipmi")), ipmi),
        "ssh": table(ssh_operations, shells),
    }
    return _TEXT.format(**{name: "\n".join(rows) for name, rows in parts.items()})


@cache
def cached_tree(folder: Path) -> dict[str, Trial]:
    return try_tree(folder)


def emulator_column() -> Trials:
    """What sushy-tools' emulator answers, by the table that its own test holds against it."""
    return {name: Trial(Verdict.NO if end.code else Verdict.YES, end.words) for name, end in EMULATOR.items()}


def ipmi_sim_column() -> Trials:
    return {name: Trial(Verdict.NO if end.code else Verdict.YES, end.words) for name, end in IPMI_SIM.items()}


_TEXT = """\
# What is supported

Written by `python -m tests.support` from operations that were carried out; a test fails where this file says
something else. None of it was tried on hardware: the trees are recordings of real BMCs, served by our own Redfish
server, which DMTF's validators find correct.

- **yes**: it was done; a change was read back from the BMC.
- **no**: the BMC does not offer it; the driver says so (`UNSUPPORTED`) with the reason.
- **–**: not tried, because the recording holds nothing to try it on.
- **not tested**: there is no recording of any of this vendor's BMCs.

`rackwright bmc qualify` says the same of one BMC, by reading it.

## redfish

Each operation was tried on our server loaded with a recording of the vendor's BMC, with what is known of the
vendor's manner laid over it: settings objects, jobs, tags, refusals. A cell that names BMCs holds for these alone.

{vendors}

Cisco, Fujitsu and Huawei (xFusion) are not tested: there is no recording of theirs under a licence that allows its
use. What is known of them from public reports is handled by the same rules.

Tried beyond the recordings, which are cut: HPE's certificates with its `HttpsCert` laid over the tree, and RAID by
jobs that refuse a second change, as Dell's, on our own tree. A console is opened by the other drivers below.

### Services that are no vendor's

The DMTF mock-ups describe machines that do not exist. sushy-tools is OpenStack's emulator of BMCs.

{others}

### Why not

In the driver's own words. The recordings are cut: a `no` says that the recording does not show it.

{reasons}

## ipmi

Suite 17 and suite 3 against our simulated BMC, suite 3 against OpenIPMI's `ipmi_sim`, which nobody here wrote.
Virtual media, Secure Boot, the boot order, BIOS, RAID and firmware do not exist in IPMI 2.0.

{ipmi}

## ssh

The console alone. The vendors' command lines are rebuilt from manuals and transcripts; OpenSSH is a real server.

{ssh}
"""


def main() -> int:
    mockups = Path(os.environ.get("RACKWRIGHT_SHARED", REPOSITORY.parent / "shared")) / "mockups"
    if not mockups.is_dir():
        sys.stderr.write(f"no recorded trees at {mockups}: set RACKWRIGHT_SHARED to the folder that holds mockups/\n")
        return 2
    FILE.write_text(document(mockups))
    sys.stdout.write(f"{FILE.relative_to(REPOSITORY)} is written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
