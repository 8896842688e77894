"""A command from its asking to its end: what is told meanwhile, and that it is asked for once."""

import io
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from protocol.errors import RequestCode, RequestError
from rackwright.client import Client, NoAnswer
from rackwright.command_news import news_of
from rackwright.following import ask, follow_command
from rackwright.terminal import NewsLine

AWAY = RequestError(RequestCode.UNAVAILABLE, "127.0.0.1:1 cannot be reached")
LOST = NoAnswer(RequestCode.UNAVAILABLE, "127.0.0.1:1 gave no answer")
HERE = {"hostName": "h", "site": "lab", "connected": True, "since": "2026-11-30T02:00:00Z"}
GONE = {**HERE, "connected": False}
REQUEST = {"nodeId": "n1", "operation": "power.getPower", "key": "req_1"}


def command(state: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "id": "cmd_1",
        "state": state,
        "createdAt": "2026-11-30T02:00:00Z",
        "notAfter": "2026-11-30T02:10:00Z",
        "agent": HERE,
        "progress": None,
        "cancelReason": None,
        **more,
    }


def news(message: str, percent: float | None = None) -> dict[str, Any]:
    return command(progress={"message": message, "percent": percent})


class ScriptedClient:
    """Answers one call after the other as it was told, and keeps what was asked."""

    def __init__(self, *answers: dict[str, Any] | BaseException) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers: Iterator[dict[str, Any] | BaseException] = iter(answers)

    def call(self, group: str, method: str, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((f"{group}.{method}", request))
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def sleep(slept: list[float]) -> Callable[[float], None]:
    return slept.append


def scripted(*answers: dict[str, Any] | BaseException) -> tuple[ScriptedClient, Client]:
    made = ScriptedClient(*answers)
    return made, cast(Client, made)


def test_each_change_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    queued = command("queued", agent=GONE)
    _, client = scripted(
        queued, queued, command("delivered"), news("setting"), news("setting", 40), command("succeeded")
    )
    assert follow_command(client, command("queued"))["state"] == "succeeded"
    assert capsys.readouterr().err.splitlines()[:-1] == [
        "waiting for the agent of site lab, away since 2026-11-30 02:00:00 UTC",
        "the agent of site lab has it, and waits for its turn at the machine",
        "setting",
        "setting 40 %",
    ]


def test_the_end_is_a_line_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    _, client = scripted(news("setting"), command("failed"))
    follow_command(client, command())
    assert capsys.readouterr().err == "setting\nfailed after 0 s\n"


def test_a_command_that_ends_at_once_tells_nothing_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    _, client = scripted(command("succeeded"))
    follow_command(client, command())
    assert capsys.readouterr().err == ""


def test_on_a_terminal_one_line_lives_within_its_width_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    _, client = scripted(news("x" * 60, 40), news("clearing\x1b"), command("succeeded"))
    follow_command(client, command())
    pieces = terminal.getvalue().split("\r\x1b[2K")
    assert pieces[0] == ""
    assert pieces[1] == "x" * 38 + "…"
    assert pieces[2].startswith("clearing\\x1b  ")
    assert pieces[-1] == ""


def test_a_control_plane_that_is_away_is_waited_for_and_the_same_command_looked_at_again(
    capsys: pytest.CaptureFixture[str], slept: list[float], sleep: Callable[[float], None]
) -> None:
    made, client = scripted(news("setting"), LOST, AWAY, AWAY, news("setting"), command("succeeded"))
    assert follow_command(client, command(), sleep=sleep)["state"] == "succeeded"
    assert {(verb, request["commandId"]) for verb, request in made.asked} == {("commands.get", "cmd_1")}
    assert len(slept) == 3
    assert "the control plane is away, the command goes on, and is looked at again: " in capsys.readouterr().err


def test_a_control_plane_that_stays_away_is_given_up_long_after_the_command_s_own_time(
    capsys: pytest.CaptureFixture[str], sleep: Callable[[float], None]
) -> None:
    moments = iter([0.0, 1190.0, 1210.0])
    _, client = scripted(AWAY, AWAY, AWAY)
    with pytest.raises(RequestError):
        follow_command(client, command(), sleep=sleep, clock=lambda: next(moments))
    assert "the command goes on: rackwright commands watch cmd_1" in capsys.readouterr().err


def test_a_refusal_ends_the_waiting_and_not_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, client = scripted(RequestError(RequestCode.UNAUTHENTICATED, "revoked"))
    with pytest.raises(RequestError):
        follow_command(client, command())
    assert "the command goes on: rackwright commands watch cmd_1" in capsys.readouterr().err


def test_a_request_whose_answer_is_lost_is_sent_again_under_the_same_key(
    capsys: pytest.CaptureFixture[str], sleep: Callable[[float], None]
) -> None:
    made, client = scripted(LOST, AWAY, command("queued"))
    assert ask(client, REQUEST, sleep=sleep)["id"] == "cmd_1"
    assert [request["key"] for _, request in made.asked] == ["req_1"] * 3
    assert capsys.readouterr().err.splitlines()[-1] == "it was taken"


def test_a_request_that_never_left_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    made, client = scripted(AWAY)
    with pytest.raises(RequestError):
        ask(client, REQUEST)
    assert (len(made.asked), capsys.readouterr().err) == (1, "")


def test_a_request_without_an_answer_for_long_names_its_key(
    capsys: pytest.CaptureFixture[str], sleep: Callable[[float], None]
) -> None:
    moments = iter([0.0, 299.0, 301.0])
    _, client = scripted(LOST, AWAY)
    with pytest.raises(RequestError):
        ask(client, REQUEST, sleep=sleep, clock=lambda: next(moments))
    assert "repeated with --key req_1 it is the same one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (command("queued"), "waiting for the agent of site lab to take it"),
        (command("queued", agent={**GONE, "since": None}), "waiting for the agent of site lab, away since it joined"),
        (
            command("queued", agent={**HERE, "site": None}),
            "waiting for the agent on the machine itself (h) to take it",
        ),
        (command("queued", agent=None), "waiting for its agent to take it"),
        (command("delivered", agent=GONE), "the agent of site lab has it, and is away since 2026-11-30 02:00:00 UTC"),
        (command(), "under way"),
        (
            command(agent=GONE),
            "under way, without news: the agent of site lab is away since 2026-11-30 02:00:00 UTC",
        ),
        (command(cancelReason="mistake"), "under way; it is to be stopped"),
    ],
)
def test_what_is_known_of_a_command(shown: dict[str, Any], told: str) -> None:
    assert news_of(shown) == told


def test_news_that_stay_the_same_are_told_once_whatever_stands_beside_them() -> None:
    stream = io.StringIO()
    line = NewsLine(stream)
    line.tell("under way", "1 s")
    line.tell("under way", "2 s")
    line.end("done")
    assert stream.getvalue() == "under way\ndone\n"
