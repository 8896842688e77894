"""A control plane and a site agent as real processes, as systemd would run them: started, killed, started again."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["AgentProcess", "ControlPlaneProcess", "Program", "free_port", "rackwright", "wait_until"]

_RACKWRIGHT = [sys.executable, "-m", "rackwright"]
PATIENCE = 30.0


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rackwright(*words: str, stdin: str = "") -> str:
    """Runs the command line and returns what it printed; fails with its standard error."""
    done = subprocess.run(
        [*_RACKWRIGHT, *words], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"rackwright {' '.join(words[:2])} ended {done.returncode}: {done.stderr}"
    return done.stdout


def wait_until(what: str, ready: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Polls until `ready()` is true and returns what it gave."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            found = ready()
            if found:
                return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {patience:g} s")


class Program:
    """A `rackwright …` process and its log. `kill` is the power cut, `stop` is SIGTERM."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *words: str,
        environment: dict[str, str] | None = None,
        command: list[str] | None = None,
    ) -> None:
        self.log = folder / f"{name}.log"
        self._command = command or [*_RACKWRIGHT, *words]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: nothing gets a chance to tidy up."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @contextlib.contextmanager
    def running_for(self) -> Iterator["Program"]:
        self.start()
        try:
            yield self
        finally:
            if self.running:
                self.kill()


class ControlPlaneProcess(Program):
    """`rackwright control-plane serve` on SQLite, with an API token of the administrator's."""

    def __init__(
        self,
        folder: Path,
        store_url: str = "",
        log_level: str = "debug",
        names: tuple[str, ...] = ("localhost", "127.0.0.1"),
    ) -> None:
        self.api_port, self.agents_port = free_port(), free_port()
        self.state = folder / "control-plane"
        self.config = folder / "control-plane.toml"
        self.config.write_text(
            f'state_dir = "{self.state}"\nworker = "w1"\n'
            f'[store]\nurl = "{store_url}"\n'
            f'[api]\nlisten = "127.0.0.1:{self.api_port}"\n'
            f'[agents]\nlisten = "127.0.0.1:{self.agents_port}"\nnames = {json.dumps(names)}\n'
            f'[log]\nlevel = "{log_level}"\nformat = "json"\n'
        )
        super().__init__(folder, "control-plane", "control-plane", "serve", "--config", str(self.config))
        self.token = ""

    def start(self) -> None:
        super().start()
        wait_until("the control plane answers", self._ready)
        if not self.token:
            self.token = rackwright(
                "control-plane", "token", "create", "--name", "test", "--config", str(self.config)
            ).strip()

    def join_token(self, site: str = "lab") -> str:
        return rackwright(
            "control-plane", "join-token", "create", "--site", site, "--create-site", "--config", str(self.config)
        ).strip()

    def call(self, verb: str, **request: object) -> dict[str, Any]:
        """One API call. Fails unless it is answered with 200."""
        status, answer = self.ask(verb, **request)
        assert status == 200, answer
        return answer

    def ask(self, verb: str, **request: object) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=90)
        with contextlib.closing(connection):
            connection.request(
                "POST",
                f"/api/compute/{verb.replace('.', '/')}",
                json.dumps(request),
                {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def _ready(self) -> bool:
        assert self.running, self.said()[-2000:]
        return self.answers()

    def answers(self) -> bool:
        """Whether somebody says on the API's port that it is ready."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200


class AgentProcess(Program):
    """`rackwright agent run`; `dial` is the port that it connects to, another than it joined at for a proxy.

    It watches its machines only with `settings` of its own: tests that count what reaches a machine want no looks.
    """

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str] | None = None,
        log_level: str = "debug",
        settings: str = "[watch]\nenabled = false\n",
    ) -> None:
        self._log_level = log_level
        self._settings = settings
        self.state = folder / "agent"
        self.config = folder / "agent.toml"
        self.dial(0)
        super().__init__(folder, "agent", "agent", "run", "--config", str(self.config), environment=environment)

    def dial(self, port: int) -> None:
        url = f'[control_plane]\nurl = "wss://127.0.0.1:{port}"\n' if port else ""
        self.config.write_text(
            f'state_dir = "{self.state}"\n{url}[log]\nlevel = "{self._log_level}"\n{self._settings}'
        )

    def join(self, plane: ControlPlaneProcess, token: str | None = None) -> None:
        rackwright(
            "agent",
            "join",
            f"https://127.0.0.1:{plane.agents_port}",
            "-",
            "--config",
            str(self.config),
            stdin=token or plane.join_token(),
        )

    def credential(self, ref: str, user: str, password: str) -> None:
        words = ("agent", "credentials", "set", ref, "--user", user, "--stdin", "--config", str(self.config))
        rackwright(*words, stdin=password)

    @property
    def identity(self) -> Path:
        return self.state / "identity"
