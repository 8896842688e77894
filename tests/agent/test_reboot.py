"""How a machine is made to go: in good order first, and by the kernel itself where nothing else answers."""

import asyncio
from pathlib import Path

import pytest

from agent.departure import Departure, Means
from agent.reboot import Kernel, Rung, ladder, leave
from drivers.linux.host import Host, Ran
from protocol.errors import OperationError


class _Still(Kernel):
    """A kernel that stays; it writes down what it was told."""

    def __init__(self, *, refuses: str = "") -> None:
        self.told: list[str] = []
        self._refuses = refuses

    def sync(self) -> None:
        self.told.append("sync")

    def leave(self, means: Means) -> None:
        self.told.append(f"reboot(2) {means}")
        if self._refuses:
            raise PermissionError(1, self._refuses)

    def break_off(self, means: Means) -> None:
        self.told.append(f"sysrq {means}")


class _Programs(Host):
    """Programs that are only written down."""

    code = 0
    ran: list[tuple[str, ...]]

    async def run(self, *words: str, timeout: float, given: bytes | None = None) -> Ran:
        self.ran.append(words)
        return Ran(self.code, "", "Access denied" if self.code else "")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> _Programs:
    async def no_time(_seconds: float) -> None:
        return None

    monkeypatch.setattr(asyncio, "sleep", no_time)
    host = _Programs()
    object.__setattr__(host, "ran", [])
    return host


def departure(means: Means = Means.REBOOT, *, force: bool = False) -> Departure:
    return Departure(command="cmd_1", boot_id="b", means=means, until_ms=0, result={}, force=force)


def test_an_installed_system_is_stopped_in_good_order_first() -> None:
    rungs = ladder(Means.REBOOT, systemd=True, force=False)
    assert rungs == [
        Rung("program", ("systemctl", "--no-block", "reboot"), 300.0),
        Rung("program", ("systemctl", "--force", "reboot"), 60.0),
        Rung("kernel"),
        Rung("sysrq"),
    ]


def test_force_leaves_out_the_good_order() -> None:
    assert ladder(Means.POWER_OFF, systemd=True, force=True)[0].words == ("systemctl", "--force", "poweroff")


def test_a_ramdisk_without_systemd_tells_the_kernel_itself() -> None:
    assert [rung.how for rung in ladder(Means.REBOOT, systemd=False, force=False)] == ["kernel", "sysrq"]


async def test_a_machine_that_does_not_go_is_told_in_every_way_and_then_the_cause_is_said(
    programs: _Programs,
) -> None:
    kernel = _Still(refuses="Operation not permitted")
    with pytest.raises(OperationError) as failure:
        await leave(departure(), programs, systemd=True, kernel=kernel)
    assert programs.ran == [("systemctl", "--no-block", "reboot"), ("systemctl", "--force", "reboot")]
    assert kernel.told == ["sync", "reboot(2) reboot", "sync", "sysrq reboot"]
    assert "systemctl --no-block reboot: still here after 300 s" in failure.value.message
    assert "Operation not permitted" in failure.value.message


async def test_a_program_that_fails_is_not_waited_for(programs: _Programs) -> None:
    object.__setattr__(programs, "code", 1)
    with pytest.raises(OperationError, match="Access denied"):
        await leave(departure(force=True), programs, systemd=True, kernel=_Still())


def test_the_last_key_is_the_one_that_restarts_at_once(tmp_path: Path) -> None:
    Kernel(Host(proc=tmp_path)).break_off(Means.REBOOT)
    assert (tmp_path / "sysrq-trigger").read_text() == "b"
