"""The operator's commands, as they are typed."""

import io
import json
import re
import stat
from pathlib import Path

import pytest

from control_plane.api.verbs import VERBS, kebab
from protocol.commands import Ending, Outcome
from protocol.errors import BmcMessage, Failure, RequestCode, RequestError
from rackwright.client import Client
from rackwright.login import login_file
from rackwright.operator import commands
from tests.control_plane.running import AnsweringAgent, RunningControlPlane
from tests.rackwright.conftest import Shell


def test_every_verb_has_its_command_with_help() -> None:
    import click

    for verb in VERBS.values():
        if verb.id in ("drivers.invoke", "doctor.findings"):
            continue
        group = commands[kebab(verb.group)]
        assert isinstance(group, click.Group)
        assert group.commands[kebab(verb.method)].help


def test_a_login_is_kept_for_its_owner_alone_and_shows_no_token(shell: Shell, plane: RunningControlPlane) -> None:
    file = login_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = json.loads(file.read_text())["token"]
    assert token not in shell.out + shell.err
    assert shell.out.startswith(f"logged in to {plane.url}")


def test_a_wrong_token_is_refused_and_not_kept(shell: Shell, plane: RunningControlPlane, tmp_path: Path) -> None:
    before = login_file().read_text()
    wrong = tmp_path / "wrong"
    wrong.write_text("rwt_" + "0" * 26 + "_" + "x" * 43)
    assert shell("login", plane.url, "--token-file", str(wrong)).code == 4
    assert "not known here" in shell.err
    assert login_file().read_text() == before
    assert shell("login", plane.url, "--token-file", str(tmp_path / "missing")).code == 2
    wrong.write_text("\n")
    assert shell("login", plane.url, "--token-file", str(wrong)).code == 2
    assert "--token-file: holds no token" in shell.err


def test_a_login_that_cannot_be_kept_says_where(
    shell: Shell, plane: RunningControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(blocked))
    assert shell("login", plane.url, "--token-file", str(tmp_path / "token")).code == 1
    assert f"the login cannot be kept in {blocked}/rackwright/login.json: " in shell.err


def test_without_a_terminal_the_token_is_not_asked_for(
    shell: Shell, plane: RunningControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("rwt_x\n"))
    assert shell("login", plane.url).code == 2
    assert "there is no terminal to ask on: give --token-file" in shell.err


def test_without_a_login_every_command_says_what_to_do(shell: Shell) -> None:
    login_file().unlink()
    assert shell("nodes", "list").code == 1
    assert "run `rackwright login URL` first" in shell.err


def test_the_environment_takes_precedence(
    shell: Shell, plane: RunningControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login_file().unlink()
    token_file = tmp_path / "ci-token"
    token_file.write_text(plane.token(["compute:nodes:read"]))
    monkeypatch.setenv("RACKWRIGHT_URL", plane.url)
    monkeypatch.setenv("RACKWRIGHT_TOKEN_FILE", str(token_file))
    assert shell("nodes", "list").code == 0
    assert shell("sites", "list").code == 4
    assert "this token is not allowed compute:sites:read" in shell.err


def test_a_node_is_registered_shown_changed_and_forgotten(shell: Shell) -> None:
    assert shell("sites", "create", "lab").code == 0
    words = ("n1", "--site", "lab", "--address", "https://192.0.2.1", "--credential-ref", "rack7")
    assert shell("nodes", "create", *words, "--label", "row=7", "--driver-of", "console=ipmi").code == 0, shell.err
    assert shell("nodes", "get", "n1", "--json").code == 0
    shown = json.loads(shell.out)
    assert (shown["labels"], shown["drivers"], shown["bmc"]["credentialRef"]) == (
        {"row": "7"},
        {"console": "ipmi"},
        "rack7",
    )
    assert shell("nodes", "update", "n1", "--no-credential-ref", "--tls", "verify").code == 0
    assert shell("nodes", "list").code == 0
    (line,) = [line for line in shell.out.splitlines() if line.startswith("n1 ")]
    assert line.split()[:-1] == [
        "n1",
        "lab",
        "enrolled",
        "unknown",
        "unknown",
        "-",
        "no",
        "-",
        "https://192.0.2.1",
        "row=7",
    ]
    assert shell("nodes", "delete", "n1").code == 0
    assert shell("nodes", "get", "n1").code == 3
    assert "there is no node 'n1'" in shell.err


def test_every_fault_of_a_command_line_is_told_with_exit_code_2(shell: Shell) -> None:
    assert shell("nodes", "create", "n1", "--site", "lab", "--address", "https://x/y", "--tls", "no").code == 2
    assert "bmc.address" in shell.err
    assert "bmc.tls" in shell.err
    assert shell("nodes", "create", "n1", "--site", "lab", "--address", "x", "--label", "row").code == 2
    assert "'row' is not of the form key=value" in shell.err
    assert shell("nodes", "create", "n1").code == 2
    assert ("--site: is required" in shell.err, "--address: is required (https://" in shell.err) == (True, True)


def test_a_list_of_many_pages_is_shown_to_its_limit_or_whole(shell: Shell, client: Client) -> None:
    client.sites.create(name="lab")
    for number in range(130):
        client.nodes.create(name=f"n{number}", site_id="lab", bmc={"address": f"simulated://n{number}"})
    assert shell("nodes", "list", "--json").code == 0
    assert len(json.loads(shell.out)["items"]) == 100
    assert shell("nodes", "list", "--limit", "3").code == 0
    assert len(shell.out.splitlines()) == 4
    assert "--all" in shell.err
    shell("nodes", "list", "--all", "--json")
    answer = json.loads(shell.out)
    assert (len(answer["items"]), answer["cursor"]) == (130, None)


def test_an_operation_is_done_and_its_result_shown(shell: Shell, agent: AnsweringAgent) -> None:
    assert shell("invoke", "n1", "power.getPower").code == 0
    assert shell.out.split() == ["state", "on", "raw", "On"]
    assert shell("invoke", "n1", "power.setPower", "action=off", "wait=false", "--json").code == 0
    command = json.loads(shell.out)
    assert (command["state"], command["args"]) == ("succeeded", {"action": "off", "wait": False})


def test_wrong_arguments_are_told_before_anything_is_sent(shell: Shell, agent: AnsweringAgent) -> None:
    assert shell("invoke", "n1", "power.setPower", "action=of", "wait=maybe").code == 2
    assert "args" not in shell.err
    assert "action: 'of' is not one of" in shell.err
    assert "wait" in shell.err
    assert shell("invoke", "n1", "power.setPowr").code == 2
    assert "did you mean power.setPower" in shell.err
    assert agent.asked == []


def test_a_failure_shows_the_bmcs_own_words_and_what_to_do_next(shell: Shell, agent: AnsweringAgent) -> None:
    failure = Failure("BMC_ERROR", "the BMC refused it", bmc=[BmcMessage("Base.1.8.GeneralError", "no \x1b[31m")])
    agent.ending = Ending(Outcome.FAILED, error=failure)
    assert shell("invoke", "n1", "power.getPower").code == 1
    assert "BMC_ERROR: the BMC refused it" in shell.err
    assert "the BMC said: Base.1.8.GeneralError: no \\x1b[31m" in shell.err


def test_a_command_that_expired_says_that_nothing_was_done(shell: Shell, client: Client) -> None:
    made = client.join_tokens.create(site_id="lab", create_site=True)
    assert made.token
    client.nodes.create(name="n1", site_id="lab", bmc={"address": "simulated://n1"})
    assert shell("invoke", "n1", "power.getPower").code == 1
    assert "site 'lab' has no agent" in shell.err


def test_a_command_is_started_watched_listed_and_cancelled(shell: Shell, agent: AnsweringAgent) -> None:
    agent.ending = None
    assert shell("invoke", "n1", "power.getPower", "--no-wait", "--json").code == 0
    command_id = json.loads(shell.out)["id"]
    assert shell("commands", "list", "--open").code == 0
    assert command_id in shell.out
    assert shell("commands", "cancel", command_id, "--reason", "mistake").code == 0
    assert shell("commands", "watch", command_id).code == 1
    assert "CANCELLED: stopped before it began" in shell.err
    assert shell("commands", "get", command_id, "--json").code == 0
    assert json.loads(shell.out)["cancelReason"] == "mistake"


def test_events_are_listed_newest_first_and_by_node_kind_and_age(shell: Shell, client: Client) -> None:
    client.sites.create(name="lab")
    for name in ("n1", "n2"):
        client.nodes.create(name=name, site_id="lab", bmc={"address": f"simulated://{name}"})
    client.nodes.update(node_id="n1", labels={"row": "7"})
    assert shell("events", "list").code == 0, shell.err
    assert [line.split()[3] for line in shell.out.splitlines()[1:]] == [
        "node.updated",
        "node.created",
        "node.created",
    ]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  node.updated", shell.out.splitlines()[1])
    assert shell("events", "list", "--node", "n2", "--kind", "node", "--since", "1h").code == 0, shell.err
    assert "name=n2" in shell.out
    assert "name=n1" not in shell.out
    shell("events", "list", "--oldest-first", "--limit", "1", "--json")
    assert json.loads(shell.out)["items"][0]["data"]["name"] == "n1"
    assert shell("events", "list", "--kind", "command").out == "none\n"
    assert shell("events", "list", "--node", "n3").code == 3
    assert shell("events", "list", "--since", "lately").code == 2


def test_one_operation_is_explained_as_it_is_invoked_on_a_node(shell: Shell) -> None:
    assert shell("drivers", "operations", "power.setPower").code == 0
    assert "example\n  rackwright invoke NODE power.setPower action=softOff softTimeout=60" in shell.out
    assert shell("drivers", "operations", "power").code == 0
    assert re.search(r"^power.getPower +read +1 min +read the power state$", shell.out, re.MULTILINE)
    assert shell("drivers", "operations", "power.setPowr").code == 2


def test_what_waits_for_a_restart_is_told_below_the_result(shell: Shell, agent: AnsweringAgent) -> None:
    waits: dict[str, object] = {"changed": {"BootMode": "Uefi"}, "pending": {"BootMode": "Uefi"}, "task": None}
    agent.ending = Ending(Outcome.SUCCEEDED, result=waits)
    assert shell("invoke", "n1", "bios.setBios", "attributes.BootMode=Uefi").code == 0
    assert "BootMode waits for a restart of the machine: power.setPower action=reset" in shell.out


def test_a_certificate_is_printed_so_that_it_can_be_copied(shell: Shell, agent: AnsweringAgent) -> None:
    csr = "-----BEGIN CERTIFICATE REQUEST-----\nMIHI\n-----END CERTIFICATE REQUEST-----\n"
    agent.ending = Ending(Outcome.SUCCEEDED, result={"csr": csr, "publicKey": "ab"})
    assert shell("invoke", "n1", "config.generateCsr", "commonName=bmc1").code == 0
    assert f"\n{csr}" in shell.out


def test_events_are_shown_as_they_happen(shell: Shell, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {"seq": 1, "at": "2026-01-01T00:00:00Z", "type": "node.created", "subject": "node/x", "data": {"name": "n1"}}
    ]

    def follow(self: Client, after: int | None) -> object:
        assert after == 0
        yield from events
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "follow_events", follow)
    assert shell("events", "watch", "--after", "0").code == 130
    assert shell.out.split() == ["2026-01-01T00:00:00Z", "node.created", "node/x", "name=n1"]


def test_tokens_are_made_shown_once_and_ended(shell: Shell) -> None:
    assert shell("tokens", "create", "ci", "--permission", "compute:*:read", "--json").code == 0
    made = json.loads(shell.out)
    assert shell("tokens", "list").code == 0
    assert "compute:*:read" in shell.out
    assert made["token"] not in shell.out
    assert shell("tokens", "revoke", made["id"]).code == 0


def test_a_token_for_every_tenant_names_the_tenant(shell: Shell, plane: RunningControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "every"
    file.write_text(plane.token(tenant="*"))
    assert shell("login", plane.url, "--token-file", str(file)).code == 0
    assert shell("nodes", "list").code == 2
    assert "tenantId: is required" in shell.err
    assert shell("nodes", "list", "--tenant", "acme").code == 0


def test_what_can_be_done_and_by_whom(shell: Shell, agent: AnsweringAgent) -> None:
    assert shell("drivers", "operations", "--concern", "power").code == 0
    assert "power.setPower" in shell.out
    assert shell("drivers", "matrix", "--json").code == 0
    assert json.loads(shell.out)["items"][0]["agentId"] == agent.agent.id
    assert shell("agents", "list").code == 0
    assert agent.agent.id in shell.out


@pytest.mark.parametrize(
    ("trouble", "code"), [(KeyboardInterrupt(), 130), (RequestError(RequestCode.UNAUTHENTICATED, "revoked"), 4)]
)
def test_waiting_that_is_cut_off_says_that_the_command_goes_on(
    shell: Shell, agent: AnsweringAgent, monkeypatch: pytest.MonkeyPatch, trouble: BaseException, code: int
) -> None:
    agent.ending = None
    original = Client.call

    def troubled(self: Client, group: str, method: str, request: dict[str, object]) -> object:
        if request.get("waitMs"):
            raise trouble
        return original(self, group, method, request)

    monkeypatch.setattr(Client, "call", troubled)
    assert shell("invoke", "n1", "power.getPower").code == code
    assert "the command goes on: rackwright commands watch cmd_" in shell.err


def test_an_invocation_that_is_interrupted_names_the_key_that_makes_repeating_harmless(
    shell: Shell, agent: AnsweringAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[object] = []

    def troubled(self: Client, group: str, method: str, request: dict[str, object]) -> object:
        keys.append(request["key"])
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "call", troubled)
    assert shell("invoke", "n1", "power.getPower").code == 130
    assert f"repeated with --key {keys[0]} it is the same one" in shell.err
