"""A control plane and a site agent, set up with the commands that a user types."""

import urllib.request
from collections.abc import Callable
from typing import Any

from bmc import USER, Bmc, Login
from children import RACKWRIGHT, Child, Children
from workspace import Workspace

from rackwright.client import Client

__all__ = ["SITE", "Agent", "ControlPlane"]

SITE = "demo"
Teach = Callable[[str], None]
"""Shows a command as a user would type it."""


class ControlPlane:
    """`rackwright control-plane serve`, on SQLite. Started when it is made."""

    def __init__(self, children: Children, workspace: Workspace, teach: Teach) -> None:
        self._children = children
        self._teach = teach
        host = workspace.address
        api, agents = workspace.free_port(8440), workspace.free_port(8443)
        self.url = f"http://{host}:{api}"
        self.agents_url = f"https://{host}:{agents}"
        self._config = workspace.folder / "control-plane.toml"
        self._config.write_text(
            f'state_dir = "{workspace.make_folder("control-plane")}"\n'
            f'[api]\nlisten = "{host}:{api}"\n'
            f'[agents]\nlisten = "{host}:{agents}"\nnames = ["{host}"]\n'
            '[log]\nformat = "json"\n'
        )
        teach("rackwright control-plane serve --config control-plane.toml")
        words = [*RACKWRIGHT, "control-plane", "serve", "--config", str(self._config)]
        self._process = children.start("control-plane", words)
        self._token = ""

    def wait_until_ready(self) -> None:
        """Until it answers; then makes an API token."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def ready() -> bool | None:
            with opener.open(f"{self.url}/readyz", timeout=5) as answer:
                return True if answer.status == 200 else None

        self._process.wait_until("is not ready", ready)
        self._token = self._run("token", "create", "--name", "demo")

    def make_join_token(self) -> str:
        return self._run("join-token", "create", "--site", SITE, "--create-site")

    def client(self) -> Client:
        """The API, for one thread."""
        return Client(self.url, self._token)

    def log_in(self) -> None:
        """For the operator's commands; remembered in the run's own folder."""
        self._teach(f"rackwright login {self.url} --token-file token")
        self._children.command(*RACKWRIGHT, "login", self.url, "--token-file", "-", stdin=self._token)

    def list_nodes(self) -> list[str]:
        """What the operator's command prints."""
        self._teach("rackwright nodes list")
        return self._children.command(*RACKWRIGHT, "nodes", "list").splitlines()

    def register(self, bmcs: list[Bmc]) -> None:
        """Makes a node of each BMC. A certificate is trusted on first use, and pinned then."""
        with self.client() as client:
            for bmc in bmcs:
                client.nodes.create(
                    name=bmc.name, site_id=SITE, bmc={"address": bmc.address, "credentialRef": bmc.login.ref}
                )
        shown = bmcs[0]
        self._teach(
            f"rackwright nodes create {shown.name} --site {SITE} --address {shown.address} "
            f"--credential-ref {shown.login.ref}"
        )

    def _run(self, *words: str) -> str:
        self._teach(f"rackwright control-plane {' '.join(words)}")
        printed = self._children.command(*RACKWRIGHT, "control-plane", *words, "--config", str(self._config))
        return printed.strip()


class Agent:
    """`rackwright agent run`, after it has joined with a one-time token."""

    def __init__(self, children: Children, workspace: Workspace, teach: Teach) -> None:
        self._children = children
        self._teach = teach
        self._config = workspace.folder / "agent.toml"
        self._config.write_text(f'state_dir = "{workspace.make_folder("agent")}"\n')
        self._process: Child | None = None

    def keep(self, logins: list[Login]) -> None:
        """Puts the BMCs' passwords into the agent's vault; they go nowhere else."""
        for login in logins:
            words = ("credentials", "set", login.ref, "--user", USER, "--stdin")
            self._children.command(*self._words(*words), stdin=login.password)
        self._teach(f"rackwright agent credentials set {logins[0].ref} --user {USER} --stdin <password-file")

    def join(self, plane: ControlPlane) -> None:
        """The token goes by standard input. The agent makes its own key, and gets a certificate for it."""
        token = plane.make_join_token()
        self._teach(f"rackwright agent join {plane.agents_url} - <join-token")
        self._children.command(*self._words("join", plane.agents_url, "-"), stdin=token)

    def run(self) -> None:
        self._teach("rackwright agent run --config agent.toml")
        self._process = self._children.start("agent", self._words("run"))

    def wait_until_connected(self, plane: ControlPlane) -> str:
        """The agent's id, once the control plane sees it."""
        assert self._process is not None
        with plane.client() as client:

            def connected() -> str | None:
                agents: list[dict[str, Any]] = client.call("agents", "list")["items"]
                return next((agent["id"] for agent in agents if agent["connected"]), None)

            return self._process.wait_until("did not connect", connected)

    def _words(self, *words: str) -> list[str]:
        return [*RACKWRIGHT, "agent", *words, "--config", str(self._config)]
