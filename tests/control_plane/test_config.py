"""The control plane's settings."""

from pathlib import Path

import pytest

from control_plane.config import Config, ConfigError, Listen, load, store_url


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "control-plane.toml"
    file.write_text(text)
    return file


def test_without_a_file_everything_has_its_default() -> None:
    config = Config()
    assert store_url(config) == "sqlite:///var/lib/rackwright-control-plane/rackwright.db"
    assert (config.api.listen, config.agents.listen) == ("127.0.0.1:8440", "0.0.0.0:8443")
    assert config.public_names[-3:] == ["localhost", "127.0.0.1", "::1"]
    assert config.agent_url.endswith(":8443")


def test_every_fault_is_told_at_once_by_file_and_key(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        state_dir = "state"
        worker = "a b"
        [api]
        listen = "8440"
        tls_key = "/x"
        lisen = "x"
        [log]
        level = "loud"
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load(file)
    told = str(caught.value)
    assert told.count(str(file)) == len(caught.value.issues) == 6
    assert {issue.path for issue in caught.value.issues} == {
        "worker",
        "api.lisen",
        "log.level",
        "state_dir",
        "api.listen",
        "api.tls_key",
    }
    assert "did you mean 'listen'?" in told


def test_faults_that_types_cannot_tell_are_told_together(tmp_path: Path) -> None:
    text = """
        state_dir = "state"
        [store]
        url = "postgresql://me:hunter2@db/x"
        [api]
        listen = "8440"
        tls_key = "/x"
        [agents]
        listen = "0.0.0.0:99999"
        names = ["ok.example", "-no-"]
        [retention]
        events = "5m"
        """
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert [issue.path for issue in caught.value.issues] == [
        "state_dir",
        "store.url",
        "api.listen",
        "agents.listen",
        "api.tls_key",
        "agents.names[1]",
        "retention.events",
    ]
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_toml_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"is not TOML: .*line 1"):
        load(written(tmp_path, "a = = b"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_a_password_comes_from_a_file_or_the_environment_and_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "password"
    secret.write_text("p@ss/word\n")
    url = 'url = "postgresql://me@db:5432/x"'
    config = load(written(tmp_path, f'[store]\n{url}\npassword_file = "{secret}"'))
    assert store_url(config) == "postgresql://me:p%40ss%2Fword@db:5432/x"
    assert "p@ss" not in repr(config)
    monkeypatch.setenv("DB_PASSWORD", "other")
    config = load(written(tmp_path, f'[store]\n{url}\npassword_env = "DB_PASSWORD"'))
    assert store_url(config) == "postgresql://me:other@db:5432/x"
    monkeypatch.delenv("DB_PASSWORD")
    with pytest.raises(ConfigError, match="the environment has no DB_PASSWORD"):
        store_url(config)
    secret.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        store_url(load(written(tmp_path, f'[store]\n{url}\npassword_file = "{secret}"')))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:8440", "::1", 8440), ("control:1", "control", 1)],
)
def test_a_place_to_listen(text: str, host: str, port: int) -> None:
    assert Listen.parse(text) == Listen(host, port)


@pytest.mark.parametrize("text", ["", "8440", ":8440", "host:", "host:65536", "host:x", "a b:1", "host:-1"])
def test_what_is_no_place_to_listen(text: str) -> None:
    with pytest.raises(ValueError, match=r"write host:port|neither an address"):
        Listen.parse(text)


def test_the_agents_url_has_the_public_name_and_port() -> None:
    config = Config()
    assert config.agent_url == f"wss://{config.public_names[0]}:8443"


def test_the_audit_trail_is_kept_at_least_as_long_as_everything_else(tmp_path: Path) -> None:
    file = written(tmp_path, '[retention]\nworkflows = "800d"\ncommands = "soon"\naudit = "30m"')
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert {issue.path for issue in caught.value.issues} == {"retention.commands", "retention.audit"}
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, '[retention]\nworkflows = "800d"'))
    assert [issue.path for issue in caught.value.issues] == ["retention.audit"]
    kept = load(written(tmp_path, '[retention]\nworkflows = "10d"\naudit = "400d"')).retention.kept
    assert (kept.workflows_ms, kept.audit_ms) == (10 * 86_400_000, 400 * 86_400_000)


def test_a_worker_may_leave_the_workflows_to_others(tmp_path: Path) -> None:
    assert Config().engine.enabled
    assert not load(written(tmp_path, "[engine]\nenabled = false")).engine.enabled
