"""`rackwright control-plane …` as its host's administrator types it."""

import json
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from control_plane.authority import Authority
from protocol.join_token import JoinToken
from rackwright.cli import main
from tests.control_plane.running import RunningControlPlane


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "c.toml"
    file.write_text(f'state_dir = "{tmp_path}/state"\n[agents]\nnames = ["control.example"]\n')
    return file


class Typed:
    def __init__(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = config
        self._capsys = capsys
        self.code = 0
        self.out = ""
        self.err = ""

    def __call__(self, *words: str) -> "Typed":
        self._capsys.readouterr()
        self.code = main(["control-plane", *words, "--config", str(self._config)])
        self.out, self.err = self._capsys.readouterr()
        return self

    def json(self, *words: str) -> Any:
        assert self(*words, "--json").code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def typed(config: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(config, capsys)


def test_the_first_token_is_made_while_nothing_runs(typed: Typed, tmp_path: Path) -> None:
    assert typed("token", "create", "--name", "admin").code == 0
    token = typed.out.strip()
    assert token.startswith("rwt_")
    assert typed.err == "Log in with it: rackwright login URL\n"
    database = tmp_path / "state" / "rackwright.db"
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    rows = sqlite3.connect(database).execute("SELECT tenant_id, permissions, secret_hash FROM tokens").fetchall()
    assert [row[:2] for row in rows] == [("default", '["*"]')]
    assert token.split("_", 2)[2] not in str(rows)


def test_tokens_have_a_tenant_permissions_and_an_end(typed: Typed) -> None:
    made = typed.json(
        "token", "create", "--name", "ci", "--tenant", "acme", "--permission", "compute:*:read", "--ttl", "1d"
    )
    assert (made["tenantId"], made["permissions"], made["expiresAt"] is not None) == (
        "acme",
        ["compute:*:read"],
        True,
    )
    assert typed.json("token", "create", "--name", "root", "--tenant", "*")["tenantId"] == "*"
    assert typed("token", "create", "--name", "ci", "--tenant", "acme").code == 1
    assert "there is a token named 'ci' already" in typed.err
    assert typed("token", "create", "--name", "x", "--permission", "read", "--ttl", "soon").code == 2
    assert "permissions[0]" in typed.err
    assert "ttl" in typed.err


def test_a_join_token_is_made_with_its_site_and_says_where_to_join(typed: Typed, tmp_path: Path) -> None:
    assert typed("join-token", "create", "--site", "lab").code == 3
    assert "there is no site 'lab'" in typed.err
    assert typed("join-token", "create", "--site", "lab", "--create-site").code == 0
    token = JoinToken.parse(typed.out)
    assert token.ca_sha256 == Authority.open(tmp_path / "state" / "ca").sha256
    assert "rackwright agent join wss://control.example:8443 TOKEN" in typed.err
    assert token.secret.reveal() not in typed.err


def test_a_running_control_plane_takes_the_same_orders(tmp_path: Path, config: Path, typed: Typed) -> None:
    with RunningControlPlane(tmp_path / "state") as plane:
        made = typed.json("token", "create", "--name", "admin")
        assert plane.run(plane.plane.store.read(_names)) == ["admin"]
        join = typed.json("join-token", "create", "--site", "lab", "--create-site")
        assert join["agentUrl"].endswith(f":{plane.plane.agents_port}")
    assert made["createdBy"] == "local"


def test_the_database_is_migrated_and_says_what_was_done(typed: Typed) -> None:
    assert typed("migrate").code == 0
    assert typed.out.startswith("applied: 0001_store, 0002_")
    assert typed("migrate").code == 0
    assert typed.out == "the tables are up to date\n"


def test_a_backup_is_whole_also_while_the_control_plane_runs(tmp_path: Path, typed: Typed) -> None:
    target = tmp_path / "copy.db"
    with RunningControlPlane(tmp_path / "state"):
        typed("token", "create", "--name", "admin")
        assert typed("backup", str(target)).code == 0, typed.err
    copy = sqlite3.connect(target)
    assert copy.execute("SELECT name FROM tokens").fetchall() == [("admin",)]
    copy.close()
    assert typed("backup", str(target)).code == 1
    assert "exists already" in typed.err


def test_the_ca_is_shown_with_its_hash(tmp_path: Path, typed: Typed) -> None:
    assert typed("ca", "show").code == 3
    assert "it is made when the control plane first serves" in typed.err
    authority = Authority.open(tmp_path / "state" / "ca")
    assert typed("ca", "show").code == 0
    assert (typed.out, typed.err) == (authority.pem, f"sha256:{authority.sha256}\n")


def test_a_config_with_a_typo_names_the_file_the_key_and_the_right_word(typed: Typed, config: Path) -> None:
    config.write_text('state_dri = "/x"\n[api]\nlisten = "8440"\n')
    for command in (("serve",), ("migrate",), ("token", "create", "--name", "x")):
        assert typed(*command).code == 2
        assert typed.err.splitlines()[:2] == [
            f"error: INVALID_INPUT: {config} has 2 faults",
            "  - state_dri: is not known here (did you mean 'state_dir'?)",
        ]
        assert "  - api.listen: '8440' is no place to listen" in typed.err


def test_a_damaged_ca_says_so_and_is_not_made_anew(typed: Typed, tmp_path: Path) -> None:
    assert typed("token", "create", "--name", "x").code == 0
    key = tmp_path / "state" / "ca" / "ca.key"
    key.write_text("")
    assert typed("serve").code == 1
    assert f"the CA in {key.parent} cannot be used: its files are damaged: put back its backup" in typed.err
    assert key.read_text() == ""


def _names(tx: Any) -> list[str]:
    return [row[0] for row in tx.all("SELECT name FROM tokens")]
