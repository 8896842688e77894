"""`rackwright bmc`: one operation straight at a BMC."""

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from drivers import simulated
from drivers.access import CREDENTIAL_FILE_VARIABLE
from protocol.operations import OPERATIONS
from rackwright.cli import main

MACHINE = ("--address", "simulated://m1")


class Shown(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Shown]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    for variable in (simulated.SCRIPT_VARIABLE, simulated.STATE_VARIABLE, CREDENTIAL_FILE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    simulated.clear()

    def one(*arguments: str) -> Shown:
        code = main(["bmc", *arguments])
        shown = capsys.readouterr()
        return Shown(code, shown.out, shown.err)

    yield one
    simulated.clear()


def secret_file(folder: Path, text: str, mode: int = 0o600) -> str:
    file = folder / "password"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_an_operation_is_done_and_its_result_is_readable(run: Run) -> None:
    shown = run("invoke", "power.setPower", "action=off", *MACHINE)
    assert shown == Shown(0, "state     off\nchanged   yes\nverbUsed  ForceOff\nforced    no\n", "")
    assert simulated.state("m1").power == "off"


def test_json_is_the_exact_result(run: Run) -> None:
    shown = run("invoke", "power.getPower", "--json", *MACHINE)
    assert json.loads(shown.out) == {"state": "on", "raw": "on"}


def test_values_are_read_by_their_types_and_nested_ones_by_dotted_keys(run: Run) -> None:
    assert run("invoke", "bios.setBios", 'attributes={"AssetTag": "7", "QuietBoot": true}', *MACHINE).code == 0
    assert simulated.state("m1").bios_pending == {"AssetTag": "7", "QuietBoot": True}
    shown = run("invoke", "deploy.writeImage", "image.url=https://images.example/a.raw", "--json", *MACHINE)
    assert json.loads(shown.out)["disk"] == "nvme0n1"


def test_lists_of_objects_become_tables(run: Run) -> None:
    lines = run("invoke", "virtual-media.listMedia", *MACHINE).out.splitlines()
    assert lines[0] == "slots"
    assert lines[1].split() == ["id", "mediaTypes", "inserted", "insertMethod", "location"]
    assert len({line.index("action") for line in lines[2:]}) == 1


def test_every_fault_of_the_command_line_is_told_at_once(run: Run) -> None:
    shown = run(
        "invoke", "power.setPower", "actoin=on", "wait=3", "word", "--timeout", "4", "--verify", "foo", "--user", "u"
    )
    assert shown.code == 2
    for fault in (
        "word: is not of the form key=value",
        "actoin: is not known here (did you mean 'action'?)",
        "action: is required",
        "wait: ",
        "--timeout: '4' is not a duration",
        "--verify: 'foo' is no trust form",
        "--address: is required",
        "--user: needs a password",
    ):
        assert f"  - {fault}" in shown.err


def test_an_unknown_operation_names_close_ones(run: Run) -> None:
    shown = run("invoke", "power.getPowr", *MACHINE)
    assert shown.code == 2
    assert "did you mean power.getPower" in shown.err


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--insecure", "--verify", "verify"), "leave one of the two out"),
        (("--verify", "first-use"), "pin it with sha256"),
        (("--password-stdin",), "--user: is required with --password-stdin"),
        (("--user", "u", "--password-file", "/nowhere/p", "--password-stdin"), "leave one of the two out"),
        (("--user", "u", "--password-file", "/nowhere/p"), "/nowhere/p: No such file"),
        (("--driver", "ipmi"), "cannot speak to simulated://m1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run: Run, options: tuple[str, ...], fault: str) -> None:
    shown = run("invoke", "power.getPower", *MACHINE, *options)
    assert shown.code == 2
    assert fault in shown.err


def test_no_option_takes_a_password(run: Run) -> None:
    shown = run("invoke", "power.getPower", *MACHINE, "--password", "hunter2")
    assert shown.code == 2
    assert "hunter2" not in shown.err


def test_a_password_in_the_address_is_refused_and_not_repeated(run: Run) -> None:
    shown = run("invoke", "power.getPower", "--address", "https://root:hunter2@192.0.2.10")
    assert shown.code == 2
    assert "hunter2" not in shown.err


def test_the_password_comes_from_a_file(run: Run, tmp_path: Path) -> None:
    simulated.script("m1", password="right")
    file = secret_file(tmp_path, "right\n")
    assert run("invoke", "power.getPower", *MACHINE, "--user", "u", "--password-file", file) == Shown(
        0, "state  on\nraw    on\n", ""
    )


def test_the_password_comes_from_the_file_that_the_environment_names(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.script("m1", password="right")
    monkeypatch.setenv(CREDENTIAL_FILE_VARIABLE, secret_file(tmp_path, "right"))
    assert run("invoke", "power.getPower", *MACHINE, "--user", "u").code == 0


def test_the_password_comes_from_standard_input(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.script("m1", password="right")
    with Path(secret_file(tmp_path, "right\r\n")).open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run("invoke", "power.getPower", *MACHINE, "--user", "u", "--password-stdin").code == 0


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n"])
def test_a_file_that_holds_no_single_password_is_refused_and_not_shown(run: Run, tmp_path: Path, text: str) -> None:
    file = secret_file(tmp_path, text)
    shown = run("invoke", "power.getPower", *MACHINE, "--user", "u", "--password-file", file)
    assert shown.code == 2
    assert "alone, on one line" in shown.err
    assert "two" not in shown.err


def test_a_password_file_that_others_can_read_is_warned_of(run: Run, tmp_path: Path) -> None:
    file = secret_file(tmp_path, "right", 0o644)
    shown = run("invoke", "power.getPower", *MACHINE, "--user", "u", "--password-file", file)
    assert shown.code == 0
    assert "chmod 600" in shown.err
    assert Path(file).stat().st_mode & stat.S_IRWXO


def test_a_refused_login_is_exit_code_4_and_shows_no_password(run: Run, tmp_path: Path) -> None:
    simulated.script("m1", password="right")
    file = secret_file(tmp_path, "hunter2")
    shown = run("invoke", "power.getPower", *MACHINE, "--user", "u", "--password-file", file)
    assert (shown.code, shown.out) == (4, "")
    assert "error: AUTH_FAILED" in shown.err
    assert "hunter2" not in shown.err


def test_a_failure_goes_to_standard_error_with_the_bmcs_words(run: Run) -> None:
    words = {"id": "Base.1.0.General", "text": "no"}
    simulated.script("m1", faults=[{"code": "BMC_ERROR", "message": "it failed", "bmc": [words]}])
    shown = run("invoke", "power.getPower", *MACHINE, "--json")
    assert (shown.code, shown.out) == (1, "")
    assert "error: BMC_ERROR: it failed\n  the BMC said: Base.1.0.General: no\n  next: " in shown.err


def test_the_timeout_is_a_duration(run: Run) -> None:
    simulated.script("m1", latency="1h")
    shown = run("invoke", "power.getPower", *MACHINE, "--timeout", "20ms")
    assert shown.code == 1
    assert "TIMEOUT" in shown.err


def test_what_was_observed_goes_beside_the_result(run: Run) -> None:
    simulated.script("m1", observed={"tlsFingerprint": "abcd"})
    assert run("invoke", "power.getPower", *MACHINE).err == "tlsFingerprint: abcd\n"


def test_a_bmcs_words_cannot_steer_the_terminal(run: Run) -> None:
    simulated.script("m1", state={"config": {"hostName": "bmc\x1b]0;owned\x07"}})
    shown = run("invoke", "config.getConfig", *MACHINE)
    assert "\x1b" not in shown.out
    assert r"bmc\x1b]0;owned\x07" in shown.out


def test_qualify_reports_every_operation(run: Run) -> None:
    shown = run("qualify", *MACHINE)
    assert shown.code == 0
    assert all(f"  {operation} " in shown.out for operation in OPERATIONS)
    report = json.loads(run("qualify", "--json", *MACHINE).out)
    assert [row["operation"] for row in report["operations"]] == list(OPERATIONS)


def test_operations_are_listed_all_or_by_concern(run: Run) -> None:
    assert [line.split()[0] for line in run("operations").out.splitlines()[1:]] == list(OPERATIONS)
    power = run("operations", "power").out.splitlines()
    assert "action=on|off|softOff|reset|cycle|nmi [wait] [softTimeout]" in power[2]
    assert "converge, once: cycle|nmi|reset" in power[2]
    assert run("operations", "steam").code == 2


def test_one_operation_is_explained_with_an_example(run: Run) -> None:
    told = run("operations", "raid.applyRaid").out
    assert "  volumes[].level: RAID0|RAID1|RAID5|RAID6|RAID10|RAID50|RAID60|JBOD; required\n" in told
    assert "  dryRun: true|false; default false\n      Only say what would be done.\n" in told
    assert "example\n  rackwright bmc invoke raid.applyRaid 'volumes=[{" in told
    refused = run("operations", "raid.aplyRaid")
    assert (refused.code, "did you mean raid.applyRaid" in refused.err) == (2, True)


def test_a_fault_of_an_argument_is_told_in_the_users_words_and_where_it_is_explained(run: Run) -> None:
    refused = run("invoke", "bios.setBios", "attributes=Uefi", "--address", "simulated://x")
    assert refused.code == 2
    assert "  - attributes: an object is wanted, this is a text\n" in refused.err
    assert "`rackwright bmc operations bios.setBios` explains its arguments" in refused.err


def test_a_dry_run_says_that_nothing_was_done(run: Run) -> None:
    done = run("invoke", "raid.applyRaid", "volumes=[]", "dryRun=true", "--address", "simulated://remarks-dry-run")
    assert done.out.splitlines()[-1] == "dry run: nothing was done"


def test_operations_as_json_tell_each_argument(run: Run) -> None:
    (row,) = [
        row for row in json.loads(run("operations", "power", "--json").out) if row["operation"] == "power.setPower"
    ]
    assert row["arguments"][0] == {
        "name": "action",
        "kind": "on|off|softOff|reset|cycle|nmi",
        "choices": ["on", "off", "softOff", "reset", "cycle", "nmi"],
        "required": True,
        "default": None,
        "meaning": "What is asked for: on and off are states, softOff asks the operating system first, "
        "the others are acts.",
    }
    assert (row["repeat"], row["onceWhen"]) == ("converge", {"action": ["cycle", "nmi", "reset"]})


def test_without_arguments_the_help_is_shown(run: Run) -> None:
    assert "invoke" in "".join(run()[1:])


def test_a_password_is_rotated_from_a_file_and_is_never_shown(run: Run, tmp_path: Path) -> None:
    old, new = secret_file(tmp_path, "present\n"), tmp_path / "next"
    new.write_text("rotated-secret\n")
    new.chmod(0o600)
    simulated.script("m1", password="present")
    words = ("rotate-password", *MACHINE, "--user", "root", "--password-file", old, "--new-password-file", str(new))
    shown = run(*words)
    assert shown.code == 0, shown.err
    assert shown.out == "user     root\nproven   yes\nchanged  yes\n"
    assert simulated.act_counts("m1") == {"config.rotatePassword": 1}
    assert "rotated-secret" not in f"{shown} {simulated.acts('m1')} {simulated.state('m1')}"


def test_an_unusable_new_password_is_told_with_every_other_fault(run: Run, tmp_path: Path) -> None:
    shown = run("rotate-password", "--new-password-file", str(tmp_path / "none"), "--timeout", "x")
    assert shown.code == 2
    for fault in ("--new-password-file", "--timeout", "--address: is required", "--user: is required"):
        assert fault in shown.err


def test_a_new_password_has_no_place_among_the_arguments(run: Run) -> None:
    shown = run("invoke", "config.rotatePassword", "user=root", "newCredentialRef=x", "newPassword=y", *MACHINE)
    assert shown.code == 2
    assert "newPassword: is not known here" in shown.err
