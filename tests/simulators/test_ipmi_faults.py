"""Faults on demand: each effect, each selector, and files of rules that are wrong."""

import struct
from pathlib import Path

import pytest

from simulators.ipmi import ChassisControl, FaultError, FaultRule, Phase, RmcpStatus, load_faults
from tests.simulators.ipmi_remote_console import PEER, Clock, RemoteConsole, make_bmc, sessionless

POWER_UP = (0, 2, b"\x01")


def admin(*rules: FaultRule, clock: Clock | None = None) -> RemoteConsole:
    """An administrator's session on a BMC that is off; the rules come into force afterwards."""
    console = RemoteConsole(make_bmc(clock, powered=False)).open()
    console.send(6, 0x3B, b"\x04")
    console.bmc.faults.replace(rules)
    return console


def test_busy_is_answered_so_often_and_then_the_command_is_obeyed() -> None:
    console = admin(FaultRule(netfn=0, cmd=2, completion_code=0xC0, count=2))
    assert [console.send(*POWER_UP)[0] for _ in range(3)] == [0xC0, 0xC0, 0]
    assert [order.action for order in console.bmc.machine.orders] == [1]


def test_a_rule_may_let_the_first_packets_pass() -> None:
    console = admin(FaultRule(netfn=6, cmd=1, completion_code=0xC3, after=2, count=1))
    assert [console.send(6, 1)[0] for _ in range(4)] == [0, 0, 0xC3, 0]


def test_a_data_prefix_selects_one_kind_of_request() -> None:
    console = admin(FaultRule(netfn=0, cmd=8, data="03", completion_code=0xCC))
    assert console.send(0, 8, b"\x03\x08") == b"\xcc"
    assert console.send(0, 8, b"\x05\xa0\x04\x00\x00\x00") == b"\x00"


def test_a_dropped_request_is_not_executed() -> None:
    console = admin(FaultRule(netfn=0, cmd=2, drop=True, count=1))
    assert console.outgoing(*POWER_UP) == []
    assert not console.bmc.machine.is_on
    (entry,) = console.bmc.journal.commands(0, 2)
    assert (entry.executed, entry.outcome, entry.fault) == (False, None, "drop")


def test_a_lost_answer_belongs_to_an_executed_request() -> None:
    console = admin(FaultRule(netfn=0, cmd=2, drop_answer=True))
    assert console.outgoing(*POWER_UP) == []
    assert console.bmc.machine.is_on
    assert len(console.bmc.journal.executed(0, 2)) == 1


@pytest.mark.case("B28")
def test_a_late_answer_belongs_to_a_request_executed_at_once() -> None:
    console = admin(FaultRule(netfn=0, cmd=2, late=7.5))
    (outgoing,) = console.outgoing(*POWER_UP)
    assert outgoing.after == 7.5
    assert console.bmc.machine.is_on


def test_a_delayed_request_is_executed_when_its_time_has_come() -> None:
    clock = Clock()
    console = admin(FaultRule(netfn=0, cmd=2, delay=3), clock=clock)
    assert console.outgoing(*POWER_UP) == []
    assert not console.bmc.machine.is_on
    assert console.bmc.next_due() == clock.now + 3
    clock.pass_(3)
    (outgoing,) = console.bmc.tick()
    assert console.result(outgoing.packet) == b"\x00"
    assert console.bmc.machine.is_on


def test_the_global_delay_goes_before_every_answer() -> None:
    bmc = make_bmc(answer_delay=0.02)
    (outgoing,) = bmc.receive(sessionless(6, 0x38, b"\x8e\x04"), PEER)
    assert outgoing.after == 0.02


def test_a_duplicated_answer_is_the_same_datagram_again() -> None:
    console = admin(FaultRule(netfn=0, cmd=2, duplicate=2))
    packets = [outgoing.packet for outgoing in console.outgoing(*POWER_UP)]
    assert len(packets) == 3
    assert len(set(packets)) == 1
    assert len(console.bmc.journal.executed(0, 2)) == 1


def test_a_wrong_sequence_answers_another_request() -> None:
    console = admin(FaultRule(netfn=6, cmd=1, wrong_sequence=True))
    (outgoing,) = console.outgoing(6, 1)
    assert console.unwrap(outgoing.packet)[4] >> 2 == console.number + 1


def test_a_replayed_sequence_repeats_the_last_session_number() -> None:
    console = admin()
    (before,) = console.outgoing(6, 1)
    console.bmc.faults.add(FaultRule(netfn=6, cmd=1, replay_sequence=True))
    (after,) = console.outgoing(6, 1)
    assert after.packet[10:14] == before.packet[10:14]


def test_garbage_and_truncated_answers() -> None:
    console = admin(FaultRule(netfn=6, cmd=1, garbage="0600ff07dead", count=1), FaultRule(netfn=6, cmd=1, truncate=9))
    assert console.outgoing(6, 1)[0].packet == bytes.fromhex("0600ff07dead")
    assert len(console.outgoing(6, 1)[0].packet) == 9


def test_silence_to_everything() -> None:
    bmc = make_bmc(faults=[FaultRule(drop=True)])
    assert bmc.receive(sessionless(6, 0x38, b"\x8e\x04"), PEER) == []
    assert bmc.receive(b"\x06\x00\xff\x06" + struct.pack(">IBBBB", 4542, 0x80, 1, 0, 0), PEER) == []
    assert bmc.receive(RemoteConsole(bmc).open_request(), PEER) == []


@pytest.mark.case("B44")
def test_suite_17_refused_or_dropped_while_suite_3_works() -> None:
    refusing = make_bmc(faults=[FaultRule(phase=Phase.OPEN_SESSION, suite=17, status=0x11)])
    assert RemoteConsole(refusing, suite=17).open().statuses == [0x11]
    assert RemoteConsole(refusing, suite=3).open().statuses == [0, 0, 0]
    dropping = make_bmc(faults=[FaultRule(phase=Phase.OPEN_SESSION, suite=17, drop=True)])
    assert dropping.receive(RemoteConsole(dropping, suite=17).open_request(), PEER) == []
    assert RemoteConsole(dropping, suite=3).open().statuses == [0, 0, 0]


@pytest.mark.case("B44")
@pytest.mark.parametrize("status", [0x09, 0x0D])
def test_administrator_refused_in_rakp_2_while_operator_works(status: int) -> None:
    bmc = make_bmc(faults=[FaultRule(phase=Phase.RAKP_1, privilege=4, status=status)])
    assert RemoteConsole(bmc, level=4).open().statuses == [0, status]
    assert RemoteConsole(bmc, level=3).open().statuses == [0, 0, 0]
    assert len(bmc.sessions.active()) == 1


@pytest.mark.case("B44")
def test_administrator_refused_at_set_privilege_while_operator_works() -> None:
    console = admin(FaultRule(netfn=6, cmd=0x3B, data="04", completion_code=0x81))
    assert console.send(6, 0x3B, b"\x04") == b"\x81"
    assert console.send(6, 0x3B, b"\x03") == b"\x00\x03"


def test_rakp_3_refused_with_a_status_of_choice() -> None:
    bmc = make_bmc(faults=[FaultRule(phase=Phase.RAKP_3, status=RmcpStatus.INSUFFICIENT_RESOURCES_FOR_ROLE, count=1)])
    assert RemoteConsole(bmc).open().statuses == [0, 0, 0x0B]
    assert RemoteConsole(bmc).open().statuses == [0, 0, 0]


def test_the_authentication_capabilities_are_a_phase_of_their_own() -> None:
    bmc = make_bmc(faults=[FaultRule(phase=Phase.AUTH_CAP, drop=True)])
    assert bmc.receive(sessionless(6, 0x38, b"\x8e\x04"), PEER) == []
    assert RemoteConsole(bmc).open().send(6, 1)[0] == 0


def test_rules_change_while_the_bmc_runs_and_their_hits_are_counted() -> None:
    console = admin()
    rule = console.bmc.faults.add(FaultRule(netfn=6, cmd=1, completion_code=0xC0))
    assert console.send(6, 1) == b"\xc0"
    assert console.bmc.faults.met(rule) == 1
    console.bmc.faults.clear()
    assert console.send(6, 1)[0] == 0


def test_every_fault_of_a_rule_is_named_at_once() -> None:
    with pytest.raises(FaultError) as raised:
        FaultRule(netfn=7, cmd=300, data="0", status=1, delay=-1, count=0)
    text = str(raised.value)
    for word in ("netfn is 7", "cmd is 300", "data is not hexadecimal", "status needs phase", "delay", "count is 0"):
        assert word in text


def test_a_rule_without_an_effect_is_refused() -> None:
    with pytest.raises(FaultError, match="no effect"):
        FaultRule(netfn=0, cmd=2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rules.toml", '[[faults]]\nphase = "open-session"\nsuite = 17\ndrop = true\n'),
        ("rules.json", '{"faults": [{"phase": "open-session", "suite": 17, "drop": true}]}'),
        ("bare.json", '[{"phase": "open-session", "suite": 17, "drop": true}]'),
    ],
)
def test_rules_are_read_from_toml_and_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert load_faults(tmp_path / name) == [FaultRule(phase=Phase.OPEN_SESSION, suite=17, drop=True)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "[[faults", ["a.toml", "not TOML"]),
        ("a.json", "{", ["a.json", "not JSON"]),
        ("a.json", "{}", ["no list of rules"]),
        ("a.json", '{"faults": [], "fault": []}', ["unknown keys", "fault"]),
        (
            "a.json",
            '[{"drop": true}, {"dorp": true}, {"phase": "rakp9", "drop": true}]',
            ["rule 2", "dorp", "rule 3"],
        ),
        ("a.json", '[{"netfn": "x", "drop": true}]', ["rule 1", "netfn"]),
    ],
)
def test_a_file_with_mistakes_names_each_of_them(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FaultError) as raised:
        load_faults(tmp_path / name)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_a_missing_file_says_which(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match=r"none\.toml"):
        load_faults(tmp_path / "none.toml")


@pytest.mark.case("B28")
def test_a_command_sent_again_after_a_lost_answer_is_carried_out_twice() -> None:
    console = admin(FaultRule(netfn=0, cmd=2, data="03", drop_answer=True, count=1))
    console.send(*POWER_UP)
    assert console.outgoing(0, 2, b"\x03") == []
    assert console.send(0, 2, b"\x03") == b"\x00"
    assert console.bmc.machine.count(ChassisControl.HARD_RESET) == 2
