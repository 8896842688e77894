"""`rackwright profiles`, as it is typed."""

import json
from pathlib import Path

import pytest
import yaml

from rackwright.cli import main
from tests.rackwright.conftest import Shell

FAULTY = """\
profile: deploy
steps:
  - use: power.setPowr
    on: no
  - {use: node.reboot, timeout: soon}
"""
SOUND = """\
profile: deploy
drivers: {power: redfish}
steps:
  - id: restart
    use: power.setPower
    on: site
    with: {action: reset}
    timeout: 90s
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "deploy.yaml"
    made.write_text(SOUND)
    return made


def test_a_profile_is_created_shown_changed_and_compared(shell: Shell, file: Path, tmp_path: Path) -> None:
    assert shell("profiles", "create", str(file)).code == 0, shell.err
    assert shell.out.startswith("deploy version 1 (prof_")
    assert "it says the same, so nothing was stored" in shell("profiles", "create", str(file)).out

    # What is shown can be kept, changed and created again.
    shown = shell("profiles", "get", "deploy").out
    assert shown.startswith("# version 1 of ")
    assert "not used yet" in shown
    assert yaml.safe_load(shown) == yaml.safe_load(SOUND.replace(" on:", " 'on':"))
    file.write_text(shown.replace("90s", "2m"))
    assert shell("profiles", "create", str(file)).out.startswith("deploy version 2 ")
    assert shell("profiles", "get", "deploy", "--version", "1").out == shown

    assert shell("profiles", "diff", "deploy", "1", "2").code == 0
    words = shell.out.split()
    assert words[-4:] == ["steps[restart].timeout", "changed", '"90s"', '"2m"']
    assert shell("profiles", "diff", "deploy", "2", "2").out == "they say the same\n"

    lines = shell("profiles", "versions", "deploy").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["2", "1"]
    assert shell("profiles", "list").out.splitlines()[1].split()[:2] == ["deploy", "2"]


def test_json_is_given_whole(shell: Shell, file: Path) -> None:
    made = json.loads(shell("profiles", "create", str(file), "--json").out)
    assert (made["version"], made["changed"]) == (1, True)
    assert json.loads(shell("profiles", "get", made["id"], "--json").out)["document"] == made["document"]
    assert json.loads(shell("profiles", "diff", "deploy", "1", "1", "--json").out)["changes"] == []


def test_a_profile_with_faults_is_refused_with_all_of_them(shell: Shell, file: Path) -> None:
    file.write_text(FAULTY)
    told = ["steps[0].on: 'no' is not one of", "steps[0].use: there is no step", "steps[1].timeout: 'soon' is not"]
    for words in (("create",), ("validate",), ("validate", "--offline")):
        assert shell("profiles", *words, str(file)).code == 2
        assert all(line in shell.err for line in told), shell.err
        assert "did you mean power.setPower" in shell.err
    assert shell("profiles", "get", "deploy").code == 3


def test_validating_shows_the_steps_that_it_makes(shell: Shell, file: Path) -> None:
    asked = shell("profiles", "validate", str(file))
    assert asked.code == 0, asked.err
    line = asked.out.splitlines()[1].split()
    assert line == ["restart", "main", "power.setPower", "site", "(redfish)", "90s", "0", "-", "-"]
    here = asked.out
    assert shell("profiles", "validate", "--offline", str(file)).out == here


def test_offline_needs_no_control_plane(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody-logged-in"))
    monkeypatch.delenv("RACKWRIGHT_URL", raising=False)
    assert main(["profiles", "validate", "--offline", "--json", str(file)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["valid"], answer["steps"][0]["timeoutMs"]) == (True, 90_000)
    file.write_text(FAULTY)
    assert main(["profiles", "validate", "--offline", "--json", str(file)]) == 2
    assert len(json.loads(capsys.readouterr().out)["issues"]) == 3
    assert main(["profiles", "validate", str(file)]) == 1


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n"])
def test_a_file_that_holds_no_object_says_so(file: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file.write_text(text)
    assert main(["profiles", "validate", "--offline", str(file)]) == 2
    assert "a profile is an object with the fields profile and steps" in capsys.readouterr().err


def test_a_missing_file_and_a_broken_one_are_told_by_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "validate", "--offline", f"{file}.missing"]) == 2
    assert "deploy.yaml.missing" in capsys.readouterr().err
    file.write_text("a: [\n")
    assert main(["profiles", "validate", "--offline", str(file)]) == 2
    assert "line 2, column 1: it is no YAML" in capsys.readouterr().err


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Rackwright profile"
