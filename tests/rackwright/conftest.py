"""A control plane that runs beside the test, and an operator who is logged in to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rackwright.cli import main
from rackwright.client import Client
from tests.control_plane.running import AnsweringAgent, RunningControlPlane


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[RunningControlPlane]:
    with RunningControlPlane(tmp_path / "state") as running:
        yield running


@pytest.fixture
def client(plane: RunningControlPlane) -> Iterator[Client]:
    with Client(plane.url, plane.token()) as made:
        yield made


@pytest.fixture
def agent(plane: RunningControlPlane, client: Client, tmp_path: Path) -> AnsweringAgent:
    """The site lab with its agent, and the node n1."""
    made = client.join_tokens.create(site_id="lab", create_site=True)
    client.nodes.create(name="n1", site_id="lab", bmc={"address": "simulated://n1"})
    folder = tmp_path / "agent"
    folder.mkdir()
    return plane.agent(made.token, folder)


class Shell:
    """Runs command lines as `rackwright` does; gives exit code and both outputs."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code = 0
        self.out = ""
        self.err = ""

    def __call__(self, *words: str) -> "Shell":
        self._capsys.readouterr()
        self.code = main(words)
        self.out, self.err = self._capsys.readouterr()
        return self


@pytest.fixture
def shell(
    plane: RunningControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """Logged in, with the login kept in the test's own folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("RACKWRIGHT_URL", "RACKWRIGHT_TOKEN_FILE", "RACKWRIGHT_CA_FILE", "RACKWRIGHT_PIN"):
        monkeypatch.delenv(name, raising=False)
    token_file = tmp_path / "token"
    token_file.write_text(plane.token() + "\n")
    made = Shell(capsys)
    assert made("login", plane.url, "--token-file", str(token_file)).code == 0, made.err
    return made
