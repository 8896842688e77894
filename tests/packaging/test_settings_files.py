"""The settings files that the Debian packages bring, held against what the services know: whoever adds a key to a
`Config` adds it there too."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

import agent.config
import control_plane.config

PACKAGES = Path(__file__).resolve().parents[2] / "packaging" / "deb"
AGENT = PACKAGES / "rackwright-agent" / "agent.toml"
DAEMON = PACKAGES / "rackwright-daemon" / "daemon.toml"
CONTROL_PLANE = PACKAGES / "rackwright-control-plane" / "control-plane.toml"
Config = agent.config.Config | control_plane.config.Config
WHOLE = pytest.mark.parametrize(
    ("file", "defaults"),
    [(AGENT, agent.config.Config()), (CONTROL_PLANE, control_plane.config.Config())],
    ids=["agent", "control-plane"],
)


def load(file: Path, defaults: Config) -> Config:
    if isinstance(defaults, agent.config.Config):
        return agent.config.load(file)
    return control_plane.config.load(file)


def uncommented(file: Path) -> str:
    """With each key that stands behind a #."""
    return re.sub(r"(?m)^# (?=[a-z_]+ = )", "", file.read_text())


def keys(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from keys(value, f"{before}{name}.")
        else:
            yield before + name, value


def shown_in(file: Path) -> dict[str, object]:
    return dict(keys(tomllib.loads(uncommented(file))))


def known_to(defaults: Config) -> dict[str, object]:
    """By way of JSON, so that a tuple is a list as in TOML."""
    return dict(keys(msgspec.json.decode(msgspec.json.encode(defaults))))


@WHOLE
def test_a_file_as_it_comes_sets_nothing(file: Path, defaults: Config) -> None:
    assert load(file, defaults) == defaults


@WHOLE
def test_every_key_is_named_and_no_other(file: Path, defaults: Config) -> None:
    assert shown_in(file).keys() ^ known_to(defaults).keys() == set()


@WHOLE
def test_what_has_a_default_is_shown_with_it(file: Path, defaults: Config) -> None:
    shown = shown_in(file)
    # None and [] cannot be shown: there the file has an example.
    wrong = {
        key: shown.get(key)
        for key, value in known_to(defaults).items()
        if value not in (None, []) and shown.get(key) != value
    }
    assert wrong == {}


@WHOLE
def test_each_example_is_a_good_one(file: Path, defaults: Config, tmp_path: Path) -> None:
    text = re.sub(r"(?m)^([a-z_]+ = ).*# such as (.+)$", r"\1\2", uncommented(file))
    # The password's two places exclude each other.
    text = re.sub(r"(?m)^password_env .*\n", "", text)
    copy = tmp_path / file.name
    copy.write_text(text)
    assert load(copy, defaults) != defaults


def test_the_daemons_file_makes_it_a_daemon_and_shows_true_defaults() -> None:
    loaded = agent.config.load(DAEMON)
    assert loaded == agent.config.Config(role="daemon", state_dir="/var/lib/rackwright-daemon")
    known = known_to(loaded)
    assert {key: value for key, value in shown_in(DAEMON).items() if known.get(key, "unknown") != value} == {}
