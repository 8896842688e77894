"""The command line: what it says, and the code it ends with."""

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.cli import agent, status_lines
from agent.status import Report
from tests.agent.counting_driver import Machines, refused
from tests.agent.tls_control_plane import control_plane

PASSWORD = "planted-p4ssword"


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "agent.toml"
        self.config.write_text(f'state_dir = "{folder}/state"\n')

    def __call__(self, *words: str, text: str = "") -> Result:
        result = CliRunner().invoke(agent, [*words, "--config", str(self.config)], input=text)
        assert PASSWORD not in result.output
        return result


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_credentials_are_set_listed_and_removed(shell: Shell) -> None:
    result = shell("credentials", "set", "site/a", "--user", "root", "--stdin", text=PASSWORD + "\n")
    assert (result.exit_code, result.output) == (0, "site/a is set, version 1\n")
    assert stat.S_IMODE((shell.folder / "state" / "vault.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((shell.folder / "state").stat().st_mode) == 0o700
    listed = json.loads(shell("credentials", "list", "--json").output)
    assert [(entry["ref"], entry["user"], entry["version"]) for entry in listed] == [("site/a", "root", 1)]
    assert "site/a  root  v1  20" in shell("credentials", "list").output
    assert shell("credentials", "remove", "site/a").exit_code == 0
    result = shell("credentials", "remove", "site/a")
    assert result.exit_code == 3
    assert "error: NOT_FOUND" in result.output


def test_a_password_may_come_from_a_file(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "pw").write_text(PASSWORD + "\n")
    assert shell("credentials", "set", "a", "--password-file", str(tmp_path / "pw")).exit_code == 0


def test_a_private_key_may_stand_in_place_of_a_password(shell: Shell, tmp_path: Path) -> None:
    pem = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PASSWORD}\n-----END OPENSSH PRIVATE KEY-----\n"
    (tmp_path / "key").write_text(pem)
    assert shell("credentials", "set", "a", "--user", "root", "--key-file", str(tmp_path / "key")).exit_code == 0
    assert PASSWORD.encode() not in (shell.folder / "state" / "vault.json").read_bytes()
    (tmp_path / "key").write_text("no key")
    refused = shell("credentials", "set", "a", "--key-file", str(tmp_path / "key"))
    assert refused.exit_code == 2
    assert "no private key" in refused.output


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (("--stdin",), "", "not empty"),
        (("--stdin",), "a\nb\n", "one line"),
        ((), "", "no terminal"),
        (("--stdin", "--password-file", "/dev/null"), "", "not both"),
        (("--password-file", "/nowhere"), "", "does not exist"),
    ],
)
def test_an_unusable_password_source_is_a_usage_error(
    words: tuple[str, ...], text: str, said: str, shell: Shell
) -> None:
    result = shell("credentials", "set", "a", *words, text=text)
    assert result.exit_code == 2
    assert said in result.output


def test_a_bad_reference_is_told(shell: Shell) -> None:
    result = shell("credentials", "set", "a b", "--stdin", text="x\n")
    assert result.exit_code == 1
    assert "error: VAULT_UNUSABLE: 'a b' is no credential reference" in result.output


def test_a_credential_is_checked_by_one_login(shell: Shell, machines: Machines) -> None:
    shell("credentials", "set", "a", "--user", "root", "--stdin", text=PASSWORD)
    result = shell("credentials", "check", "a", "--address", "simulated://m1")
    assert (result.exit_code, result.output) == (0, "a is good at simulated://m1 (power is on)\n")
    assert machines.reads["m1"] == 1
    from protocol.errors import ErrorCode

    machines.fails["m1"] = refused(ErrorCode.AUTH_FAILED, "the BMC refused this user and password")
    result = shell("credentials", "check", "a", "--address", "simulated://m1")
    assert result.exit_code == 4
    assert "error: AUTH_FAILED: the BMC refused" in result.output
    assert shell("credentials", "check", "b", "--address", "simulated://m1").exit_code == 1
    assert shell("credentials", "check", "a", "--address", "ftp://m1").exit_code == 2


def test_a_faulty_configuration_is_a_usage_error_on_every_command(shell: Shell) -> None:
    shell.config.write_text("stat_dir = 1\n")
    for words in (("run",), ("status",), ("credentials", "list"), ("join", "https://x", "t")):
        result = shell(*words)
        assert result.exit_code == 2, words
        assert "did you mean 'state_dir'?" in result.output


def test_before_joining_everything_says_how_to_join(shell: Shell) -> None:
    (shell.folder / "state").mkdir()
    result = shell("status", "--json")
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert report["joined"] is False if "joined" in report else True
    assert "rackwright agent join URL TOKEN" in report["trouble"]
    text = shell("status").output
    assert "does not run" in text
    assert "rackwright agent join" in text


def test_the_status_tells_how_many_machines_are_watched_and_how_many_cannot_be_asked() -> None:
    report = Report(running=True, version="1", state_dir="/x", watched={"nodes": 7, "withEvents": 3, "troubled": 1})
    assert dict(status_lines(report))["watched"] == "7 machines, 3 tell of events, 1 cannot be asked"


async def test_a_join_whose_answer_was_lost_says_that_the_same_command_can_be_given_again(
    shell: Shell, tmp_path: Path
) -> None:
    import asyncio

    async with control_plane(tmp_path, lost_answers=1) as plane:
        token = plane.token()
        result = await asyncio.to_thread(shell, "join", plane.url, token)
        assert result.exit_code == 4
        assert "the same command) can be repeated until the token expires" in result.output
        result = await asyncio.to_thread(shell, "join", plane.url, token)
        assert result.exit_code == 0, result.output


async def test_a_join_takes_its_token_from_standard_input_too(shell: Shell, tmp_path: Path) -> None:
    import asyncio

    async with control_plane(tmp_path) as plane:
        token = plane.token()
        result = await asyncio.to_thread(shell, "join", plane.url, "-", text=token + "\n")
        assert result.exit_code == 0
        assert "joined as agent_" in result.output
        assert token not in result.output
        result = await asyncio.to_thread(shell, "join", plane.url, token)
        assert result.exit_code == 1
        assert "--force" in result.output
        result = await asyncio.to_thread(shell, "join", plane.url, token, "--force")
        assert result.exit_code == 4
        assert "used already" in result.output
        report = json.loads((await asyncio.to_thread(shell, "status", "--json")).output)
        assert report["site"] == "site-1"
        assert report["certificateEnds"] > 0
