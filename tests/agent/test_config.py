"""The configuration: an empty file is a good one, and a bad one is told of whole."""

from pathlib import Path

import pytest

from agent.config import Config, load
from agent.errors import ConfigError


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    return file


def test_an_empty_file_and_no_file_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.config.DEFAULT_PATH", tmp_path / "none.toml")
    assert load(written(tmp_path, "")) == load() == Config()
    assert str(Config().vault_key_file) == "/var/lib/rackwright-agent/vault.key"


def test_a_whole_file_is_taken(tmp_path: Path) -> None:
    config = load(
        written(
            tmp_path,
            """
            state_dir = "/srv/agent"
            role = "daemon"
            [control_plane]
            url = "https://cp.example:8443"
            [log]
            level = "debug"
            format = "text"
            [vault]
            key_file = "/etc/rackwright/vault.key"
            [limits]
            running = 10
            stop_seconds = 3
            """,
        )
    )
    assert (config.role, config.log.level, config.limits.running, config.limits.held) == (
        "daemon",
        "debug",
        10,
        10_000,
    )
    assert str(config.vault_key_file) == "/etc/rackwright/vault.key"


def test_every_fault_is_told_at_once_with_file_key_and_hint(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        state_dri = "/x"
        role = "sight"
        [control_plane]
        url = 7
        [log]
        level = "dbug"
        [limits]
        running = 0
        """,
    )
    with pytest.raises(ConfigError) as failure:
        load(file)
    lines = str(failure.value).splitlines()
    assert len(lines) == 5
    assert all(line.startswith(f"{file}: ") for line in lines)
    assert any("state_dri: is not known here (did you mean 'state_dir'?)" in line for line in lines)
    assert any("log.level" in line and "did you mean 'debug'" in line for line in lines)
    assert any("limits.running" in line for line in lines)
    assert any("control_plane.url" in line for line in lines)
    assert any("role" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("state_dir = [", "is not TOML"),
        ('state_dir = "state"', "state_dir: 'state' is not an absolute path"),
        ('[control_plane]\nurl = "http://cp"', "control_plane.url: http:// would carry secrets in clear"),
        ('[watch]\nevents = ["smoke"]', "watch.events"),
        ("[watch]\ninterval_seconds = 0", "watch.interval_seconds"),
        ('[events]\nlisten = "here"', "events.listen: 'here' is not host:port"),
        ('[events]\nurl = "https://192.0.2.7:8444"', "events.listen: is missing"),
        ('[events]\nlisten = "0.0.0.0:8444"', "events.url: is missing: BMCs need an address"),
        ('[events]\nlisten = "h:1"\ntls_key = "/k"', "events.tls_key: a certificate and its key belong together"),
        (
            '[events]\nlisten = "h:1"\nurl = "http://h:1"\ntls_key = "/k"\ntls_certificate = "/c"',
            "events.url: 'http://h:1' is no https address",
        ),
    ],
)
def test_an_unusable_value_says_what_is_usable(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failure:
        load(written(tmp_path, text))
    assert said in str(failure.value)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no configuration file"):
        load(tmp_path / "none.toml")


def test_what_images_may_come_from_is_addresses_and_networks(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[images]\nallow = ["127.0.0.1:8080", "fd00::/8"]\n')
    assert load(file).images.allow == ("127.0.0.1:8080", "fd00::/8")
    file.write_text('[images]\nallow = ["127.0.0.1", "files.example", "127.0.0.1:x"]\n')
    with pytest.raises(ConfigError) as failure:
        load(file)
    assert [issue.path for issue in failure.value.issues] == ["images.allow[1]", "images.allow[2]"]
