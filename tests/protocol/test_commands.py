"""The states of a command, and what its payload must be before it is stored or begun."""

import itertools

import pytest

from protocol.commands import (
    SELF_TERMINATING,
    TERMINAL,
    TRANSITIONS,
    CommandKind,
    CommandState,
    Outcome,
    may_follow,
    payload_faults,
    repeat_of,
)
from protocol.operations import Repeat

S = CommandState

SOUND: dict[str, object] = {
    "driver": "redfish",
    "concern": "power",
    "operation": "setPower",
    "args": {"action": "on"},
    "targetNodeId": "node_1",
    "target": {"address": "https://192.0.2.10", "credentialRef": "rack-1", "tls": "verify"},
}


def payload(**changes: object) -> dict[str, object]:
    return {**SOUND, **changes}


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(S)
    assert {state for state, after in TRANSITIONS.items() if not after} == TERMINAL


def test_an_ended_command_stays_as_it_ended() -> None:
    assert not any(may_follow(before, after) for before, after in itertools.product(TERMINAL, S))


def test_no_command_goes_back_or_stays() -> None:
    order = [S.QUEUED, S.DELIVERED, S.RUNNING]
    for earlier, later in itertools.combinations(order, 2):
        assert may_follow(earlier, later)
        assert not may_follow(later, earlier)
    assert not any(may_follow(state, state) for state in S)


def test_a_command_that_runs_can_no_longer_be_refused_or_expire() -> None:
    assert TRANSITIONS[S.RUNNING] == {S.SUCCEEDED, S.FAILED, S.CANCELLED}


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_a_terminal_state(outcome: Outcome) -> None:
    assert outcome.state in TERMINAL


def test_a_sound_payload_has_no_fault() -> None:
    assert payload_faults("driver.invoke", SOUND) == []
    assert payload_faults("driver.invoke", payload(driver="linux", target=None)) == []
    assert payload_faults("driver.invoke", payload(driver="auto")) == []


def test_every_fault_of_a_payload_is_told_at_once() -> None:
    bad = payload(driver="snmp", args={"acton": "on"}, target={"address": "x", "tls": "maybe"})
    assert [issue.path for issue in payload_faults("driver.invoke", bad)] == [
        "payload.driver",
        "payload.args.acton",
        "payload.args.action",
        "payload.target.tls",
    ]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"concern": "steam"}, "payload.concern"),
        ({"operation": "explode"}, "payload.operation"),
        ({"args": None}, "payload.args"),
        ({"target": {}}, "payload.target.address"),
        ({"target": {"address": "https://root:hunter2@192.0.2.10"}}, "payload.target.address"),
        ({"target": {"address": "ftp://192.0.2.10"}}, "payload.target.address"),
    ],
)
def test_a_fault_is_told_with_its_path_and_no_secret(changes: dict[str, object], path: str) -> None:
    issues = payload_faults("driver.invoke", payload(**changes))
    assert path in [issue.path for issue in issues]
    assert "hunter2" not in str(issues)


def test_an_unknown_kind_is_refused_and_the_known_ones_are_named() -> None:
    (issue,) = payload_faults("driver.destroy", {})
    assert issue.path == "kind"
    assert "driver.invoke" in issue.message


@pytest.mark.parametrize(
    ("kind", "content", "repeat"),
    [
        ("driver.invoke", payload(operation="getPower", args={}), Repeat.READ),
        ("driver.invoke", SOUND, Repeat.CONVERGE),
        ("driver.invoke", payload(args={"action": "reset"}), Repeat.ONCE),
        ("driver.invoke", payload(args={"action": ["reset"]}), Repeat.CONVERGE),
        ("driver.invoke", payload(operation="unknown"), Repeat.ONCE),
        ("driver.invoke", payload(args=None), Repeat.ONCE),
        ("driver.invoke", {}, Repeat.ONCE),
        ("agent.collectLogs", {}, Repeat.READ),
        ("task.run", {}, Repeat.ONCE),
        ("a.newer.kind", {}, Repeat.ONCE),
    ],
)
def test_what_is_not_known_to_be_harmless_is_done_once(kind: str, content: dict[str, object], repeat: Repeat) -> None:
    assert repeat_of(kind, content) is repeat


def test_kinds_that_end_their_own_process_are_acts() -> None:
    assert {repeat_of(kind, {}) for kind in SELF_TERMINATING} == {Repeat.ONCE}
    assert set(CommandKind) >= SELF_TERMINATING
