"""`hostConfig` on a host that is a folder: each item is brought about, read back, and told of where it cannot be."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.host_config import HostConfigurator
from agent.host_name import with_host_name
from agent.host_users import set_user_keys, with_keys
from drivers.linux.host import Host, Ran
from protocol.errors import OperationError

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGZha2VmYWtlZmFrZWZha2VmYWtlZmFrZWZha2VmYWtlZmFr ada@example"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG90aGVyb3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVy bob"


@dataclass(frozen=True)
class System(Host):
    """An installed system: services by name as [enabled, running]; those in `stubborn` never change, and those in
    `failing` are started again and again."""

    services: dict[str, list[bool]] = field(default_factory=dict)
    stubborn: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    ran: list[tuple[str, ...]] = field(default_factory=list)

    async def run(self, *words: str, timeout: float, given: bytes | None = None) -> Ran:
        self.ran.append(words)
        if words[0] == "hostname":
            (self.proc / "sys" / "kernel" / "hostname").write_text(words[1] + "\n")
            return Ran(0, "", "")
        unit = words[-1]
        state = self.services.get(unit)
        if words[1:3] == ("show", "--property=LoadState"):
            return Ran(0, "loaded\n" if state is not None else "not-found\n", "")
        if state is None:
            return Ran(5, "", f"Unit {unit} not found.")
        match words[1]:
            case "is-enabled":
                return Ran(0, "enabled\n" if state[0] else "disabled\n", "")
            case "show" if state[1] and unit in self.failing:
                return Ran(0, "ActiveState=activating\nSubState=auto-restart\n", "")
            case "show":
                return Ran(0, f"ActiveState={'active' if state[1] else 'inactive'}\nSubState=any\n", "")
            case "enable" | "disable" if unit not in self.stubborn:
                state[0] = words[1] == "enable"
            case "start" | "stop" | "restart" if unit not in self.stubborn:
                state[1] = words[1] != "stop"
        return Ran(0, "", "")

    @property
    def acts(self) -> list[str]:
        reads = ("show", "is-enabled")
        return [" ".join(words) for words in self.ran if words[1] not in reads]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "home" / "ada").mkdir(parents=True)
    (root / "etc" / "passwd").write_text(
        f"root:x:0:0::/root:/bin/sh\nada:x:{os.getuid()}:{os.getgid()}:Ada:/home/ada:/bin/bash\n"
    )
    (root / "etc" / "hosts").write_text("127.0.0.1\tlocalhost\n127.0.1.1\tdebian\n")
    (root / "etc" / "hostname").write_text("debian\n")
    return root


@pytest.fixture
def system(tmp_path: Path) -> System:
    (tmp_path / "proc" / "sys" / "kernel").mkdir(parents=True)
    (tmp_path / "proc" / "sys" / "kernel" / "hostname").write_text("debian\n")
    return System(proc=tmp_path / "proc")


async def test_everything_that_is_named_is_brought_about_and_a_second_time_nothing_is_changed(
    system: System, root: Path
) -> None:
    (root / "etc" / "chrony").mkdir()
    (root / "etc" / "chrony" / "chrony.conf").write_text("sourcedir /etc/chrony/sources.d\n")
    system.services.update(
        {"chrony.service": [True, True], "nginx.service": [False, False], "cups.service": [True, True]}
    )
    spec: dict[str, object] = {
        "hostname": "n1.example.net",
        "users": [{"name": "ada", "keys": [KEY]}],
        "time": {"servers": ["ntp1.example.net", "192.0.2.7"]},
        "services": {"nginx": {"enabled": True, "state": "running"}, "cups": {"enabled": False, "state": "stopped"}},
    }
    configurator = HostConfigurator(system, root)
    assert await configurator.apply(spec) == []
    assert (root / "etc" / "hostname").read_text() == "n1.example.net\n"
    assert (root / "etc" / "hosts").read_text() == "127.0.0.1\tlocalhost\n127.0.1.1\tn1.example.net n1\n"
    assert KEY in (root / "home" / "ada" / ".ssh" / "authorized_keys").read_text()
    sources = (root / "etc" / "chrony" / "sources.d" / "rackwright.sources").read_text()
    assert "server ntp1.example.net iburst\nserver 192.0.2.7 iburst\n" in sources
    assert system.services["nginx.service"] == [True, True]
    assert system.services["cups.service"] == [False, False]
    assert "hostname n1.example.net" in system.acts
    system.ran.clear()
    assert await configurator.apply(spec) == []
    assert system.acts == []


async def test_a_fault_of_one_item_keeps_none_of_the_others_from_being_done(system: System, root: Path) -> None:
    system.services.update({"nginx.service": [False, False], "ssh.service": [True, False]})
    system.stubborn.add("nginx.service")
    issues = await HostConfigurator(system, root).apply(
        {
            "users": [{"name": "nobody-here", "keys": [KEY]}],
            "time": {"servers": ["ntp.example"]},
            "packages": ["nginx"],
            "hostname": "{node.name}",
            "services": {
                "nginx": {"state": "running"},
                "gone": {"enabled": True},
                "rackwright-daemon": {"state": "stopped"},
                "ssh": {"state": "running"},
            },
        }
    )
    told = {issue.path: issue.message for issue in issues}
    assert told["users[0] nobody-here"].startswith("there is no user 'nobody-here'")
    assert told["time"].startswith("neither chrony nor systemd-timesyncd")
    assert told["packages"] == "is not known here"
    assert "hostname" in told
    assert told["services.nginx"] == "nginx.service does not run after all"
    assert "no gone.service" in told["services.gone"]
    assert "this agent itself" in told["services.rackwright-daemon"]
    assert system.services["ssh.service"] == [True, True]
    assert len(issues) == 7


async def test_a_service_that_fails_again_and_again_does_not_run_and_can_be_stopped(
    system: System, root: Path
) -> None:
    system.services["nginx.service"] = [True, True]
    system.failing.add("nginx.service")
    configurator = HostConfigurator(system, root)
    (issue,) = await configurator.apply({"services": {"nginx": {"state": "running"}}})
    assert issue.message == "nginx.service does not run after all: systemd goes on starting it (auto-restart)"
    assert await configurator.apply({"services": {"nginx": {"state": "stopped"}}}) == []
    assert system.services["nginx.service"] == [True, False]


@pytest.mark.parametrize(
    ("settings", "unit", "ours"),
    [
        ("etc/chrony.conf", "chronyd.service", "etc/chrony.conf"),
        (
            "usr/lib/systemd/systemd-timesyncd",
            "systemd-timesyncd.service",
            "etc/systemd/timesyncd.conf.d/50-rackwright.conf",
        ),
    ],
)
async def test_the_program_that_keeps_the_clock_is_given_its_servers(
    system: System, root: Path, settings: str, unit: str, ours: str
) -> None:
    (root / settings).parent.mkdir(parents=True, exist_ok=True)
    (root / settings).write_text("pool 2.rhel.pool.ntp.org iburst\ndriftfile /var/lib/chrony/drift\n")
    system.services[unit] = [True, True]
    configurator = HostConfigurator(system, root)
    for server in ("one.example", "two.example"):
        assert await configurator.apply({"time": {"servers": [server]}}) == []
    text = (root / ours).read_text()
    assert "two.example" in text
    assert "one.example" not in text
    if ours == settings:
        assert text.startswith("# pool 2.rhel.pool.ntp.org iburst\ndriftfile /var/lib/chrony/drift\n")


async def test_a_clock_program_that_does_not_start_is_a_fault(system: System, root: Path) -> None:
    (root / "etc" / "chrony.conf").write_text("")
    system.services["chronyd.service"] = [True, False]
    system.stubborn.add("chronyd.service")
    (issue,) = await HostConfigurator(system, root).apply({"time": {"servers": ["a.example"]}})
    assert "chronyd.service does not run" in issue.message


def test_a_users_own_keys_stay_and_ours_are_replaced(root: Path) -> None:
    file = root / "home" / "ada" / ".ssh" / "authorized_keys"
    file.parent.mkdir(mode=0o700)
    file.write_text(f"{OTHER}\n")
    assert set_user_keys(root, "ada", [KEY])
    assert not set_user_keys(root, "ada", [KEY])
    assert file.read_text() == f"{OTHER}\n# begin: kept by rackwright\n{KEY}\n# end: kept by rackwright\n"
    assert set_user_keys(root, "ada", [])
    assert file.read_text() == f"{OTHER}\n"


@pytest.mark.parametrize("left", [f"# begin: kept by rackwright\n{KEY}\n", "# end: kept by rackwright\n"])
def test_a_user_who_has_removed_a_mark_loses_no_key(root: Path, left: str) -> None:
    file = root / "home" / "ada" / ".ssh" / "authorized_keys"
    file.parent.mkdir(mode=0o700)
    file.write_text(f"{left}{OTHER}\n")
    with pytest.raises(OperationError, match="are not in pairs any more"):
        set_user_keys(root, "ada", [KEY])
    assert file.read_text() == f"{left}{OTHER}\n"


def test_the_file_is_the_users_and_nobody_elses(root: Path) -> None:
    set_user_keys(root, "ada", [KEY])
    folder = root / "home" / "ada" / ".ssh"
    assert (folder.stat().st_mode & 0o777, (folder / "authorized_keys").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_link_that_a_user_put_there_leads_nowhere(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root:hash\n")
    folder = root / "home" / "ada" / ".ssh"
    folder.mkdir()
    (folder / "authorized_keys").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        set_user_keys(root, "ada", [KEY])
    folder.joinpath("authorized_keys").unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        set_user_keys(root, "ada", [KEY])
    assert secret.read_text() == "root:hash\n"
    assert not (tmp_path / "authorized_keys").exists()


def test_taking_keys_away_makes_no_folder(root: Path) -> None:
    assert not set_user_keys(root, "ada", [])
    assert not (root / "home" / "ada" / ".ssh").exists()


@pytest.mark.parametrize("key", ["", "ssh-ed25519 AAAA\nssh-rsa BBBB", 'command="sh" ssh-rsa AAAA', f"{KEY}\n"])
async def test_what_is_no_key_is_refused(system: System, root: Path, key: str) -> None:
    (issue,) = await HostConfigurator(system, root).apply({"users": [{"name": "ada", "keys": [key]}]})
    assert issue.path.startswith("users[0].keys")
    assert not (root / "home" / "ada" / ".ssh").exists()


def test_keys_that_are_named_twice_are_written_once() -> None:
    assert with_keys("", [KEY, KEY]).count(KEY) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("127.0.0.1 localhost\n", "127.0.0.1 localhost\n127.0.1.1\tn1\n"),
        ("127.0.1.1 old.example old alias\n", "127.0.1.1\tn1 alias\n"),
        ("192.0.2.5 n1\n", "192.0.2.5 n1\n"),
        ("127.0.1.1 n1\n", "127.0.1.1 n1\n"),
        ("", "127.0.1.1\tn1\n"),
    ],
)
def test_the_table_of_hosts_has_the_name_once(before: str, after: str) -> None:
    assert with_host_name(before, "n1", "old.example") == after


async def test_a_kernel_that_keeps_its_name_is_a_fault(
    system: System, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_self: System, *words: str, timeout: float, given: bytes | None = None) -> Ran:
        return Ran(1, "", "hostname: you must be root to change the host name")

    monkeypatch.setattr(System, "run", refused)
    (issue,) = await HostConfigurator(system, root).apply({"hostname": "n2"})
    assert "you must be root" in issue.message


def test_an_unknown_user_is_told_what_to_do(root: Path) -> None:
    with pytest.raises(OperationError, match="have the image or cloud-init make it"):
        set_user_keys(root, "eve", [KEY])
