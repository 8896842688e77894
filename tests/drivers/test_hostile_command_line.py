"""`rackwright bmc` in the hands of a tired operator: every fault at once, in words that say what to do."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from drivers.cli import bmc

ADDRESS = "https://127.0.0.1:9"
SECRET = "Planted-Pa55word"


def run(*words: str, stdin: bytes | str = "") -> Result:
    return CliRunner().invoke(bmc, ["invoke", "power.getPower", *words], input=stdin)


def said(result: Result) -> str:
    return result.output


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "alone, on one line"),
        (b"\n", "alone, on one line"),
        (b"one\ntwo\n", "alone, on one line"),
        (b"\xff\xfe", "not UTF-8"),
        (SECRET.encode() * 300, "more than 4096 characters"),
    ],
)
@pytest.mark.parametrize("way", ["file", "stdin"])
def test_a_password_that_cannot_be_one_is_refused_before_anything_is_asked(
    tmp_path: Path, content: bytes, words: str, way: str
) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    file.chmod(0o600)
    given = ["--password-file", str(file)] if way == "file" else ["--password-stdin"]
    result = run("--address", ADDRESS, "--user", "admin", *given, stdin=content)
    assert result.exit_code == 2
    assert words in said(result)
    assert "Traceback" not in said(result)
    assert SECRET not in said(result)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--address", ADDRESS, "--timeout", "0s"), "90s"),
        (("--address", ADDRESS, "--timeout", "-5s"), "duration"),
        (("--address", ADDRESS, "--timeout", "ten"), "duration"),
        (("--address", f"https://admin:{SECRET}@127.0.0.1"), "give them on their own"),
        (("--address", "https://127.0.0.1/redfish/v1"), "only the BMC's host and port"),
        (("--address", "https://127.0.0.1:0"), "1 to 65535"),
        (("--address", "telnet://127.0.0.1"), "https://host"),
        (("--address", ""), "https://host"),
        (("--address", "http://192.0.2.1"), "--allow-http"),
        (("--address", ADDRESS, "--driver", "ipmi"), "leave it out"),
        (("--address", ADDRESS, "--verify", "sha256:12"), "64 hexadecimal"),
        (("--address", ADDRESS, "--verify", "ca:relative.pem"), "absolute path"),
        (("--address", ADDRESS, "--verify", "none", "--insecure"), "leave one of the two out"),
        (("--address", ADDRESS, "--user", "admin"), "--password-file"),
        (("--address", ADDRESS, "--user", "admin", "--password-file", "/does/not/exist"), "No such file"),
        (("--address", ADDRESS, "--password-file", "/does/not/exist"), "--user"),
        ((), "--address"),
        (("--address", ADDRESS, "power"), "key=value"),
        (("--address", ADDRESS, "power=on"), "known"),
    ],
)
def test_a_fault_of_the_command_line_says_what_to_do_next(words: tuple[str, ...], hint: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert hint in said(result)
    assert "Traceback" not in said(result)
    assert SECRET not in said(result)


def test_all_faults_are_told_at_once() -> None:
    result = CliRunner().invoke(
        bmc,
        [
            "invoke",
            "power.setPower",
            "action=explode",
            "x=1",
            "--address",
            "htp://x",
            "--timeout",
            "5y",
            "--verify",
            "?",
        ],
    )
    assert result.exit_code == 2
    for word in ("explode", "x: ", "htp://", "--timeout", "--verify"):
        assert word in said(result)


def test_a_result_is_json_that_a_program_can_read() -> None:
    result = run("--address", "simulated://quiet", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["state"] in ("on", "off")
