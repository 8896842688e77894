"""The root of the command line: quick, lazy, and clear when something is missing or wrong."""

import errno
import os
import signal
import subprocess
import sys
import time
from types import ModuleType

import click
import pytest

from protocol import VERSION
from protocol.errors import BmcMessage, ErrorCode, Issue, OperationError, RequestCode, RequestError
from rackwright import cli
from rackwright.cli import COMMANDS, Place, main

_ROOMS = ("protocol", "drivers", "agent", "control_plane", "ramdisk", "simulators")
_SHOW_MODULES = """
import sys
from rackwright.cli import main
code = main(sys.argv[1:])
print("\\n".join(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def modules_after(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SHOW_MODULES, *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stderr.split()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command `try` that raises what a test puts into the list."""
    raised: list[BaseException] = []

    @click.command()
    def attempt() -> None:
        raise raised[0]

    module = ModuleType("room_of_this_test")
    module.attempt = attempt  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "COMMANDS", {"try": Place(module.__name__, "attempt", "Fail.")})
    return raised


def test_help_lists_every_command_and_imports_no_room() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rackwright", "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    loaded = modules_after("--help")
    assert [name for name in loaded if name.partition(".")[0] in _ROOMS] == []
    assert not {"asyncio", "msgspec", "rich", "aiohttp"} & set(loaded)


def test_help_imports_few_modules() -> None:
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, click; print(len(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert len(modules_after("--help")) < int(bare.stdout) + 40


def test_a_command_loads_its_own_room_only() -> None:
    loaded = {name.partition(".")[0] for name in modules_after("bmc", "--help")}
    assert loaded & set(_ROOMS) == {"drivers", "protocol"}
    assert not loaded & {"aiohttp", "cryptography", "rich"}


def test_every_command_of_the_operator_has_its_line_in_the_help() -> None:
    from rackwright.operator import commands

    listed = {name: place.help for name, place in COMMANDS.items() if place.module == "rackwright.operator"}
    assert set(listed) == set(commands)
    groups = {name: group for name, group in commands.items() if isinstance(group, click.Group)}
    assert {name: group.help for name, group in groups.items()} == {name: listed[name] for name in groups}


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rackwright {VERSION}\n"


def test_an_unknown_command_names_close_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node"]) == 2
    assert "did you mean nodes" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "--help" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


def test_a_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_module: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'websockets'", name="websockets")

    monkeypatch.setattr(cli, "import_module", missing)
    assert main(["agent", "status"]) == 1
    assert "'agent' needs websockets, which is not installed: pip install 'rackwright[agent]'" in (
        capsys.readouterr().err
    )


def test_a_room_that_was_not_shipped_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"agent": Place("agent.not_here", "agent", "", "agent")})
    assert main(["agent"]) == 1
    assert "not part of this installation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OperationError(ErrorCode.UNREACHABLE, "no route"), 1),
        (OperationError(ErrorCode.INVALID_ARGUMENT, "no such drive"), 2),
        (OperationError(ErrorCode.AUTH_FAILED, "refused"), 4),
        (OperationError(ErrorCode.AUTH_BLOCKED, "refused before"), 4),
        (RequestError(RequestCode.NOT_FOUND, "no such node"), 3),
        (RequestError(RequestCode.FORBIDDEN, "not allowed"), 4),
        (RequestError(RequestCode.UNAUTHENTICATED, "who are you"), 4),
        (RequestError.invalid([Issue("name", "is required")]), 2),
        (RequestError(RequestCode.UNAVAILABLE, "later"), 1),
    ],
)
def test_an_error_gives_its_exit_code_and_never_a_traceback(
    command: list[BaseException], error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command.append(error)
    assert main(["try"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "Traceback" not in shown.err


def test_an_error_shows_the_bmcs_own_words_and_what_to_do_next(
    command: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    words = BmcMessage("Base.1.0.Busy", "in use \x1b[31mby\nsomebody")
    command.append(OperationError(ErrorCode.TIMEOUT, "it took too long", bmc=[words]))
    main(["try"])
    assert capsys.readouterr().err.splitlines() == [
        "error: TIMEOUT: it took too long",
        r"  the BMC said: Base.1.0.Busy: in use \x1b[31mby somebody",
        "  next: it may have happened: read the machine's state before you repeat it",
    ]


def test_trouble_of_the_host_is_told_without_a_traceback(
    command: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    command.append(OSError(errno.ENOSPC, "No space left on device", "/var/lib/x"))
    assert main(["try"]) == 1
    assert capsys.readouterr().err == "error: /var/lib/x: No space left on device\n"


def test_a_fault_of_the_program_is_not_hidden(command: list[BaseException]) -> None:
    command.append(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        main(["try"])


@pytest.mark.parametrize("signal_like", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_ends_quietly_with_130(
    command: list[BaseException], signal_like: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    command.append(signal_like)
    assert main(["try"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.e2e
def test_ctrl_c_during_a_change_says_that_it_may_have_happened(tmp_path: os.PathLike[str]) -> None:
    script = os.path.join(tmp_path, "machines.json")
    fault = '{"operation": "power.setPower", "hang": true, "moment": "after"}'
    with open(script, "w") as file:
        file.write('{"machines": {"m1": {"faults": [' + fault + "]}}}")
    environment = {
        **os.environ,
        "RACKWRIGHT_SIMULATED_SCRIPT": script,
        "RACKWRIGHT_SIMULATED_STATE": str(tmp_path),
    }
    arguments = ["bmc", "invoke", "power.setPower", "action=reset", "--address", "simulated://m1"]
    with subprocess.Popen(
        [sys.executable, "-m", "rackwright", *arguments], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        acts = os.path.join(tmp_path, "m1.acts")
        while not (os.path.exists(acts) and os.path.getsize(acts)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == "interrupted: power.setPower may have happened; read the machine's state first"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_code_is_printed_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_RACKWRIGHT_COMPLETE" in capsys.readouterr().out


def completions(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash would be offered for the last of the words."""
    monkeypatch.setenv("_RACKWRIGHT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    return [line.partition(",")[2] for line in capsys.readouterr().out.split()]


def test_commands_operations_and_arguments_are_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offered(words: str) -> list[str]:
        return completions(words, monkeypatch, capsys)

    assert offered("rackwright bm") == ["bmc"]
    assert offered("rackwright bmc invoke power.") == ["power.getPower", "power.setPower"]
    assert offered("rackwright bmc invoke power.setPower ") == ["action=", "wait=", "softTimeout="]
    assert offered("rackwright bmc invoke power.setPower action=so") == ["action=softOff"]
    assert offered("rackwright bmc invoke power.setPower wait=") == ["wait=true", "wait=false"]
    assert offered("rackwright invoke r1 power.") == ["power.getPower", "power.setPower"]
    assert offered("rackwright invoke r1 power.setPower action=so") == ["action=softOff"]
