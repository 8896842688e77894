"""`rackwright invoke` waits through whatever becomes of the agent and the control plane, and asks for one command.

Real processes: control plane, site agent with a scripted machine, and the operator's command line.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.processes import AgentProcess, ControlPlaneProcess, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def test_an_absent_agent_and_a_killed_control_plane_are_waited_for(tmp_path: Path) -> None:
    plane, agent = ControlPlaneProcess(tmp_path), AgentProcess(tmp_path)
    told = tmp_path / "told"
    with ExitStack() as stack:
        stack.enter_context(plane.running_for())
        agent.join(plane)
        plane.call("nodes.create", tenantId="default", name="n1", siteId="lab", bmc={"address": "simulated://n1"})
        token = tmp_path / "token"
        token.write_text(plane.token)
        environment = {
            **os.environ,
            "RACKWRIGHT_URL": f"http://127.0.0.1:{plane.api_port}",
            "RACKWRIGHT_TOKEN_FILE": str(token),
        }
        with told.open("wb") as errors:
            words = [sys.executable, "-m", "rackwright", "invoke", "n1", "power.setPower", "action=on"]
            operator = stack.enter_context(
                subprocess.Popen(
                    [*words, "--tenant", "default"], stdout=subprocess.PIPE, stderr=errors, env=environment
                )
            )
        stack.callback(operator.kill)
        wait_until("the agent is missed", lambda: "waiting for the agent of site lab" in told.read_text())

        plane.kill()
        wait_until("the control plane is missed", lambda: "the control plane is away" in told.read_text())
        plane.start()
        wait_until("the command is looked at again", lambda: told.read_text().count("waiting for the agent") == 2)

        stack.enter_context(agent.running_for())
        output, _ = operator.communicate(timeout=60)
        commands = plane.call("commands.list", tenantId="default")["items"]
    lines = told.read_text().splitlines()
    assert (operator.returncode, output.split()[:2]) == (0, [b"state", b"on"]), lines
    assert lines[0] == "waiting for the agent of site lab, away since it joined"
    assert lines[-1].startswith("succeeded after ")
    assert [command["operation"] for command in commands] == ["power.setPower"]
