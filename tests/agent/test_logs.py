"""Logs: one JSON object a line, and no secret in any of them, however it came there."""

import base64
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from agent.logs import Lines, Scrubber, set_up
from protocol.commands import Ending, Outcome
from protocol.errors import BmcMessage, Failure
from protocol.secret import Secret

PASSWORD = 'pl4nted "pass"\\word'


class Logged:
    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.scrubber = Scrubber()
        self.scrubber.learn(Secret(PASSWORD))
        self.lines: Lines = set_up("debug", "json", self.scrubber, self.stream)

    def text(self) -> str:
        return self.stream.getvalue()

    def last(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.text().splitlines()[-1])
        return found


@pytest.fixture
def logged() -> Iterator[Logged]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield Logged()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _nowhere(logged: Logged) -> None:
    for form in (PASSWORD, json.dumps(PASSWORD)[1:-1], "pl4nted", base64.b64encode(PASSWORD.encode()).decode()):
        assert form not in logged.text()
        assert not any(form in line for line in logged.lines.kept)


def test_a_line_is_one_json_object_with_time_level_and_name(logged: Logged) -> None:
    structlog.get_logger("agent.x").info("started", node="n1")
    line = logged.last()
    assert line["event"] == "started"
    assert (line["level"], line["logger"], line["node"]) == ("info", "agent.x", "n1")
    assert str(line["timestamp"]).endswith("Z")


def test_lines_of_libraries_go_the_same_way(logged: Logged) -> None:
    logging.getLogger("drivers.x").warning("%s answers late", "the BMC")
    assert logged.last()["event"] == "the BMC answers late"
    assert logged.last()["level"] == "warning"


def test_a_secret_object_is_masked_wherever_it_stands(logged: Logged) -> None:
    log = structlog.get_logger("agent.x")
    log.debug("a", value=Secret(PASSWORD), nested={"x": [Secret(PASSWORD)]}, text=f"{Secret(PASSWORD)}")
    logging.getLogger("y").debug("got %s and %r", Secret(PASSWORD), Secret(PASSWORD))
    _nowhere(logged)


@pytest.mark.parametrize("name", ["password", "newPassword", "X-Auth-Token", "secret", "Authorization", "privateKey"])
def test_a_field_that_sounds_secret_is_masked(name: str, logged: Logged) -> None:
    structlog.get_logger("agent.x").info("a", **{name: "unheard-of"}, nested={name: "unheard-of"})
    assert "unheard-of" not in logged.text()


def test_a_known_password_is_taken_out_of_any_text(logged: Logged) -> None:
    log = structlog.get_logger("agent.x")
    log.info(f"the BMC says {PASSWORD}", body={"Value": PASSWORD})
    log.info("raw", header=f"Basic {base64.b64encode(b'root:' + PASSWORD.encode()).decode()}")
    logging.getLogger("y").error("body %s", json.dumps({"a": PASSWORD}))
    _nowhere(logged)
    assert len(logged.text().splitlines()) == 3


def test_a_traceback_shows_no_values(logged: Logged) -> None:
    local = PASSWORD
    try:
        raise ValueError(f"cannot take {local}")
    except ValueError:
        structlog.get_logger("agent.x").exception("failed")
        logging.getLogger("y").exception("failed too")
    assert "ValueError" in logged.text()
    assert "Traceback" in str(logged.last())
    _nowhere(logged)


@pytest.mark.parametrize(
    "text",
    [
        "rwj1." + "ab" * 32 + ".jtk_01abc.s3cret-value_x",
        "Authorization: Bearer s3cret.value-x",
        "https://root:s3cret-value@192.0.2.1/redfish",
        "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----",
    ],
)
def test_secrets_are_known_by_their_shape_also_when_nobody_told_of_them(text: str, logged: Logged) -> None:
    structlog.get_logger("agent.x").info("seen", text=text)
    logging.getLogger("y").info("seen %s", text)
    assert "s3cret" not in logged.text()


def test_a_line_that_cannot_be_written_is_told_of_without_its_content(logged: Logged) -> None:
    logged.lines.handle(logging.LogRecord("y", logging.INFO, "y.py", 1, "%d", (PASSWORD,), None))
    assert logged.last()["event"] == "log_line_lost"
    _nowhere(logged)


def test_an_ending_repeats_no_secret(logged: Logged) -> None:
    failure = Failure("BMC_ERROR", f"odd {PASSWORD}", bmc=[BmcMessage("x", PASSWORD)], details={"a": PASSWORD})
    cleaned = logged.scrubber.clean_ending(Ending(Outcome.FAILED, error=failure))
    assert cleaned.error == Failure("BMC_ERROR", "odd ***", bmc=[BmcMessage("x", "***")], details={"a": "***"})
    done = Ending(Outcome.SUCCEEDED, result={"state": "on"})
    assert logged.scrubber.clean_ending(done) is done


@pytest.mark.parametrize("secret", ["a", "admin", "password", "calvin"])
def test_a_password_that_is_a_word_is_taken_out_as_a_value_and_does_not_blot_out_the_log(secret: str) -> None:
    scrubber = Scrubber()
    scrubber.learn(Secret(secret))
    words = f"the BMC at 192.0.2.1 takes no {secret} for another"
    assert scrubber.clean(words) == words
    line = json.dumps({"event": words, "sent": {"Value": secret}, "body": json.dumps({"New": secret})})
    assert json.loads(scrubber.clean(line)) == {
        "event": words,
        "sent": {"Value": "***"},
        "body": json.dumps({"New": "***"}),
    }


@pytest.mark.parametrize("secret", ["4711", "1234", "BMC_ERROR"])
def test_an_ending_stays_one_whatever_the_password_looks_like(secret: str) -> None:
    scrubber = Scrubber()
    scrubber.learn(Secret(secret))
    failure = Failure("BMC_ERROR", "at port 4711", details={"port": 1234, "said": [f"PIN={secret}"]})
    cleaned = scrubber.clean_ending(Ending(Outcome.FAILED, error=failure))
    assert cleaned.error is not None
    assert (cleaned.error.code, cleaned.error.details) == ("BMC_ERROR", {"port": 1234, "said": ["PIN=***"]})
