"""The SSH console from a real OpenSSH server to an operator's terminal, the node bound to Redfish for all else."""

from pathlib import Path

import pytest

from tests.drivers.ssh.test_openssh import Sshd, sshd  # noqa: F401
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, rackwright, wait_until
from tests.e2e.pty_program import on_a_terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]
ESCAPE = b"\x1d"


def test_an_operator_works_at_an_ssh_console(tmp_path: Path, sshd: Sshd) -> None:  # noqa: F811
    folder = tmp_path / "site"
    folder.mkdir()
    key = folder / "key.pem"
    key.write_text(sshd.key)
    key.chmod(0o600)
    plane, agent = ControlPlaneProcess(folder), AgentProcess(folder)
    user = sshd.target().username or ""
    with plane.running_for():
        agent.join(plane)
        words = ("agent", "credentials", "set", "bmc", "--user", user, "--key-file", str(key))
        rackwright(*words, "--config", str(agent.config))
        record = {"address": f"ssh://127.0.0.1:{sshd.port}", "credentialRef": "bmc"}
        plane.call("nodes.create", tenantId="default", name="n1", siteId="lab", bmc=record)
        with agent.running_for():
            wait_until(
                "the agent is connected",
                lambda: any(item["connected"] for item in plane.call("agents.list", tenantId="default")["items"]),
            )
            token = folder / "token"
            token.write_text(plane.token)
            environment = {
                "RACKWRIGHT_URL": f"http://127.0.0.1:{plane.api_port}",
                "RACKWRIGHT_TOKEN_FILE": str(token),
            }
            with on_a_terminal("console", "n1", "--tenant", "default", environment=environment) as program:
                program.expect(b"for help")
                program.press(b"over SSH")
                program.expect(b"over SSH")
                # What a restarted BMC does: every connection breaks.
                for pid in sshd.sessions():
                    _kill(pid)
                program.expect(b"was cut")
                program.expect(b"connected again")
                program.press(b"and again")
                program.expect(b"and again")
                program.press(ESCAPE + b".")
                assert program.wait() == 0
            node = plane.call("nodes.get", tenantId="default", nodeId="n1")
            assert node["bmc"]["tls"] == "first-use", "a host key is no certificate: the agent pins it by itself"
            agent.stop()
        plane.stop()
    everything = agent.said() + plane.said()
    assert sshd.key.splitlines()[1] not in everything


def _kill(pid: int) -> None:
    import contextlib
    import os
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
