"""`rackwright nodes commission`, `deploy` and the rest, as they are typed, against a control plane that runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane.config import MetalConfig
from control_plane.metal.rows import find_provision, put_provision
from control_plane.metal.states import ProvisionState
from control_plane.nodes import find_node
from control_plane.records import AgentRow
from control_plane.store import params_of
from protocol.commands import Ending, Outcome
from protocol.errors import Failure
from protocol.ids import new_id
from rackwright.client import Client
from tests.control_plane.running import AnsweringAgent, RunningControlPlane
from tests.rackwright.conftest import Shell

SHA256 = "ab" * 32


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[RunningControlPlane]:
    """One whose settings bind the rescue to another profile."""
    made = RunningControlPlane(tmp_path / "state")
    made.config = msgspec.structs.replace(made.config, metal=MetalConfig(rescue="look-into-it"))
    with made as running:
        yield running


@pytest.fixture
def profiles(client: Client, agent: AnsweringAgent) -> Client:
    for name in ("commission", "release", "look-into-it"):
        health = {"use": "management.getHealth", "on": "site"}
        client.call("profiles", "create", {"document": {"profile": name, "drivers": DRIVERS, "steps": [health]}})
    steps = [{"use": "metal.writeImage"}, {"use": "metal.configDrive"}]
    client.call("profiles", "create", {"document": {"profile": "deploy", "drivers": DRIVERS, "steps": steps}})
    return client


DRIVERS = {"management": "simulated"}


def force(plane: RunningControlPlane, state: str, base: str | None = None) -> None:
    def work(tx: Any) -> None:
        node = find_node(tx, "acme", "n1")
        at, reached = ProvisionState(state), ProvisionState(base or state)
        put_provision(tx, msgspec.structs.replace(find_provision(tx, node), state=at, base=reached, workflow_id=None))

    plane.run(plane.plane.store.write(work))


def was_in_ramdisk(plane: RunningControlPlane) -> None:
    """The ramdisk of n1 was connected, and is not any more."""

    def work(tx: Any) -> None:
        node = find_node(tx, "acme", "n1")
        agent = AgentRow(
            new_id("agent"), "acme", node.site_id, node.id, "ramdisk", "n1", "0", {}, tx.now(), None, None, None
        )
        names = AgentRow.__struct_fields__
        places = ", ".join(f":{name}" for name in names)
        tx.run(f"INSERT INTO agents ({', '.join(names)}) VALUES ({places})", params_of(agent))
        tx.run(
            "INSERT INTO sessions (id, agent_id, role, boot_id, journal_id, instance, worker, connected_at, "
            "disconnected_at) VALUES (:id, :agent, 'ramdisk', 'b1', 'j1', 'i1', 'w1', :now, :now)",
            {"id": new_id("sess"), "agent": agent.id, "now": tx.now()},
        )

    plane.run(plane.plane.store.write(work))


def test_a_machine_is_commissioned_and_watched_to_the_end(shell: Shell, profiles: Client) -> None:
    assert shell("nodes", "commission", "n1", "--watch").code == 0, shell.err
    assert "n1: commissioning, by wf_" in shell.err
    assert "management.getHealth on site) succeeded" in shell.out
    assert "workflow succeeded" in shell.out.splitlines()


def test_the_machine_moves_on_with_the_workflow_in_the_same_process(
    shell: Shell, profiles: Client, plane: RunningControlPlane
) -> None:
    shell("nodes", "commission", "n1", "--watch")
    for _ in range(200):
        assert shell("nodes", "list").code == 0
        if "available" in shell.out:
            break
    header, row = shell.out.splitlines()
    assert header.split()[:3] == ["name", "site", "state"]
    assert row.split()[2] == "available"


def test_without_watching_it_says_how_to_follow(shell: Shell, profiles: Client) -> None:
    assert shell("nodes", "commission", "n1").code == 0
    assert shell.out.startswith("n1: commissioning, by wf_")
    assert "follow it: rackwright workflows watch n1 wf_" in shell.err


def test_a_workflow_that_fails_ends_the_watching_with_one_and_its_cause(
    shell: Shell, profiles: Client, agent: AnsweringAgent
) -> None:
    agent.ending = Ending(Outcome.FAILED, error=Failure("UNREACHABLE", "no route to host"))
    assert shell("nodes", "commission", "n1", "--watch").code == 1
    assert "UNREACHABLE: no route to host" in shell.err
    assert "rackwright nodes get n1 shows how it stands" in shell.err


def test_the_settings_bind_a_verb_to_another_profile(shell: Shell, profiles: Client) -> None:
    assert shell("nodes", "rescue", "n1", "--watch").code == 0, shell.err


def test_a_deploy_reads_its_files_and_sends_what_was_typed(
    shell: Shell, profiles: Client, plane: RunningControlPlane, tmp_path: Path
) -> None:
    force(plane, "available")
    user_data = tmp_path / "user-data"
    user_data.write_text("#cloud-config\n")
    typed = ("--image", "https://images.example/d.raw.zst", "--sha256", SHA256, "--root-device", "smallest=true")
    assert shell("nodes", "deploy", "n1", *typed, "--user-data", str(user_data), "--json").code == 0, shell.err
    workflow_id = json.loads(shell.out)["provision"]["workflowId"]
    asked = plane.run(plane.plane.store.read(_asked, workflow_id))
    assert asked == {
        "image": {"url": "https://images.example/d.raw.zst", "sha256": SHA256, "sha512": None, "format": None},
        "rootDevice": {
            **dict.fromkeys(("serial", "wwn", "model", "name", "minSizeGiB", "maxSizeGiB", "rotational")),
            "smallest": True,
        },
        "userData": "#cloud-config\n",
    }


@pytest.mark.parametrize(
    ("typed", "code", "told"),
    [
        (["--sha256", SHA256], 2, "--image is missing"),
        (["--image", "https://x/y.raw"], 2, "has no checksum"),
        (["--image", "https://x/y.raw", "--sha256", SHA256, "--root-device", "smallest"], 2, "key=value"),
        (["--image", "https://x/y.raw", "--sha256", SHA256, "--user-data", "/nowhere"], 2, "--user-data"),
        ([], 2, "writes the image that is asked for"),
    ],
)
def test_what_was_typed_wrongly_is_told(
    shell: Shell, profiles: Client, plane: RunningControlPlane, typed: list[str], code: int, told: str
) -> None:
    force(plane, "available")
    assert shell("nodes", "deploy", "n1", *typed).code == code
    assert told in shell.err


def test_what_the_state_does_not_allow_is_refused_with_the_way_out(shell: Shell, profiles: Client) -> None:
    assert shell("nodes", "release", "n1").code != 0
    assert "only a machine that was deployed is released" in shell.err
    assert shell("nodes", "recover", "n1").code != 0
    assert "only a machine that has failed" in shell.err
    assert shell("nodes", "abort", "n1").code != 0
    assert "no workflow moves it: it is enrolled" in shell.err


def test_a_machine_out_of_rescue_is_started_and_watched_until_its_system_is_there_or_has_not_come(
    shell: Shell, profiles: Client, plane: RunningControlPlane
) -> None:
    health = {"use": "management.getHealth", "on": "site"}
    profiles.call("profiles", "create", {"document": {"profile": "recover", "drivers": DRIVERS, "steps": [health]}})
    force(plane, "deployed")
    force(plane, "rescue", base="deployed")
    was_in_ramdisk(plane)
    assert shell("nodes", "recover", "n1", "--watch").code == 0, shell.err
    assert "n1: recovering, by wf_" in shell.err
    for _ in range(200):
        assert shell("nodes", "get", "n1").code == 0
        if "failed" in shell.out:
            break
    # This profile waits for no system, and none has come.
    assert "NOT_BACK" in shell.out
    assert shell("nodes", "recover", "n1", "--as-it-is").code == 0, shell.err
    assert shell.out == "n1: deployed\n"


def test_maintenance_is_switched_on_and_off(shell: Shell, profiles: Client) -> None:
    assert shell("nodes", "maintain", "n1", "on", "--reason", "a new fan").code == 0
    assert shell.out == "n1: maintenance, in place of enrolled, a new fan\n"
    assert shell("nodes", "maintain", "n1", "off").code == 0
    assert shell.out == "n1: enrolled\n"


def test_a_node_opts_in_to_remediation_and_has_profiles_of_its_own(shell: Shell, profiles: Client) -> None:
    assert shell("nodes", "update", "n1", "--remediate", "on", "--profile", "deploy=raid", "--json").code == 0
    provision = json.loads(shell.out)["provision"]
    assert (provision["remediate"], provision["profiles"]) == (True, {"deploy": "raid"})


def _asked(tx: Any, workflow_id: str) -> Any:
    row = tx.one("SELECT asked FROM provision_runs WHERE workflow_id = :id", {"id": workflow_id})
    return msgspec.json.decode(row[0])
