"""Finding a BMC, setting a session up, keeping it and losing it: IPMI 2.0, chapters 6 and 13."""

import struct

import pytest

from simulators.ipmi import Identity, Phase, Privilege, RmcpStatus, SessionLimits
from tests.simulators.ipmi_remote_console import PEER, RMCP, Clock, RemoteConsole, answer_of, make_bmc, sessionless


def test_a_presence_ping_is_answered_with_ipmi_supported() -> None:
    ping = b"\x06\x00\xff\x06" + struct.pack(">IBBBB", 4542, 0x80, 0x21, 0, 0)
    (pong,) = make_bmc().receive(ping, PEER)
    assert pong.packet[:12] == b"\x06\x00\xff\x06" + struct.pack(">IBBBB", 4542, 0x40, 0x21, 0, 16)
    assert pong.packet[20] & 0x80
    assert pong.peer == PEER


def test_authentication_capabilities_are_told_without_a_session() -> None:
    (answer,) = make_bmc().receive(sessionless(6, 0x38, b"\x8e\x04"), PEER)
    code, channel, types, status, versions = answer_of(answer.packet)[:5]
    assert (code, channel, types & 0x80, versions) == (0, 1, 0x80, 0x02)
    assert status & 0x04, "there are named users"
    assert not status & 0x20, "no K_G is set"


def test_a_k_g_is_announced() -> None:
    (answer,) = make_bmc(k_g=b"k" * 20).receive(sessionless(6, 0x38, b"\x8e\x04"), PEER)
    assert answer_of(answer.packet)[3] & 0x20


@pytest.mark.parametrize("suites", [(3,), (17,), (3, 17)])
def test_the_suites_offered_are_the_suites_listed(suites: tuple[int, ...]) -> None:
    (answer,) = make_bmc(suites=suites).receive(sessionless(6, 0x54, b"\x0e\x00\x80"), PEER)
    records = answer_of(answer.packet)[2:]
    assert [records[place + 1] for place in range(0, len(records), 5)] == list(suites)
    assert all(records[place] == 0xC0 for place in range(0, len(records), 5))


def test_a_command_that_needs_a_session_is_refused_without_one() -> None:
    bmc = make_bmc()
    (answer,) = bmc.receive(sessionless(0, 2, b"\x00"), PEER)
    assert answer_of(answer.packet) == b"\xd4"
    assert bmc.machine.is_on


@pytest.mark.parametrize("suite", [3, 17])
@pytest.mark.parametrize("k_g", [b"", b"bmc key of 20 bytes!"])
def test_a_session_is_set_up_and_carries_commands(suite: int, k_g: bytes) -> None:
    console = RemoteConsole(make_bmc(k_g=k_g), suite=suite, k_g=k_g).open()
    assert console.statuses == [0, 0, 0]
    assert console.challenge_is_right
    assert console.send(6, 1)[:2] == b"\x00\x20"
    assert console.send(0, 1)[1] & 1


def test_a_wrong_k_g_makes_no_working_session() -> None:
    console = RemoteConsole(make_bmc(k_g=b"right"), k_g=b"wrong")
    with pytest.raises(AssertionError):
        console.open()


@pytest.mark.case("B44")
def test_a_suite_that_is_not_offered_is_refused_with_status_11() -> None:
    console = RemoteConsole(make_bmc(suites=(3,)), suite=17).open()
    assert console.statuses == [RmcpStatus.NO_CIPHER_SUITE_MATCH]


def test_null_algorithms_leave_the_choice_to_the_bmc() -> None:
    bmc = make_bmc()
    payload = struct.pack("<BBHI", 1, 4, 0, 0x01020304)
    for kind in range(3):
        payload += struct.pack("<BHBBBH", kind, 0, 0, 0, 0, 0)
    (answer,) = bmc.receive(RMCP + struct.pack("<BBIIH", 6, 0x10, 0, 0, len(payload)) + payload, PEER)
    opened = answer.packet[16:]
    assert opened[1] == 0
    assert (opened[16], opened[24], opened[32]) == (3, 4, 1), "suite 17 is the strongest offered"


def test_an_unknown_user_is_refused_in_rakp_2() -> None:
    assert RemoteConsole(make_bmc(), user="nobody").open().statuses == [0, RmcpStatus.UNAUTHORISED_NAME]


def test_a_level_above_the_users_limit_is_refused_in_rakp_2() -> None:
    bmc = make_bmc()
    assert RemoteConsole(bmc, user="viewer", password=b"view").open().statuses == [0, RmcpStatus.UNAUTHORISED_ROLE]
    by_role = RemoteConsole(bmc, user="viewer", password=b"view", name_only=False).open()
    assert by_role.statuses == [0, RmcpStatus.UNAUTHORISED_NAME]
    assert RemoteConsole(bmc, user="viewer", password=b"view", level=2).open().statuses == [0, 0, 0]


def test_a_wrong_password_shows_in_rakp_2_and_is_refused_in_rakp_4() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc, password=b"wrong").open()
    assert not console.challenge_is_right
    assert console.statuses == [0, 0, RmcpStatus.INVALID_INTEGRITY_CHECK]
    assert bmc.sessions.active() == []


def test_a_console_that_gives_up_in_rakp_3_gets_no_answer_and_frees_its_session() -> None:
    bmc = make_bmc(limits=SessionLimits(maximum=1))
    console = RemoteConsole(bmc)
    opened = console.ask(console.open_request())
    console.session_id = struct.unpack_from("<I", opened, 8)[0]
    console.ask(console.rakp1())
    gave_up = console._set_up(
        0x14, struct.pack("<BBHI", 3, RmcpStatus.INVALID_INTEGRITY_CHECK, 0, console.session_id)
    )
    assert bmc.receive(gave_up, PEER) == []
    assert RemoteConsole(bmc, remote_id=7).open().statuses == [0, 0, 0]


def test_repeated_set_up_messages_get_the_same_answers() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc)
    opened = console.ask(console.open_request())
    console.session_id = struct.unpack_from("<I", opened, 8)[0]
    challenge = console.ask(console.rakp1())
    assert console.ask(console.rakp1()) == challenge
    console._take_challenge(challenge)
    welcome = console.ask(console.rakp3())
    assert console.ask(console.rakp3()) == welcome
    console.take_welcome(welcome)
    assert console.send(6, 1)[0] == 0
    assert len(bmc.sessions.active()) == 1


def test_a_repeated_open_request_takes_no_second_slot() -> None:
    bmc = make_bmc(limits=SessionLimits(maximum=1))
    console = RemoteConsole(bmc)
    for _ in range(4):
        assert console.ask(console.open_request())[1] == 0


@pytest.mark.case("B46")
def test_more_sessions_than_slots_are_refused_with_insufficient_resources() -> None:
    bmc = make_bmc(limits=SessionLimits(maximum=2))
    first = RemoteConsole(bmc, remote_id=1).open()
    RemoteConsole(bmc, remote_id=2).open()
    assert RemoteConsole(bmc, remote_id=3).open().statuses == [RmcpStatus.INSUFFICIENT_RESOURCES]
    assert first.send(6, 0x3C, struct.pack("<I", first.session_id)) == b"\x00"
    assert RemoteConsole(bmc, remote_id=3).open().statuses == [0, 0, 0]


def test_half_open_sessions_run_out() -> None:
    clock = Clock()
    bmc = make_bmc(clock, limits=SessionLimits(maximum=1, half_open=20))
    console = RemoteConsole(bmc, remote_id=1)
    console.ask(console.open_request())
    assert RemoteConsole(bmc, remote_id=2).open().statuses == [RmcpStatus.INSUFFICIENT_RESOURCES]
    clock.pass_(20)
    assert RemoteConsole(bmc, remote_id=2).open().statuses == [0, 0, 0]


def test_a_session_ends_after_a_minute_of_silence_and_then_is_not_answered() -> None:
    clock = Clock()
    console = RemoteConsole(make_bmc(clock)).open()
    clock.pass_(59)
    assert console.send(6, 1)[0] == 0
    clock.pass_(60)
    assert console.outgoing(6, 1) == []


def test_a_closed_session_is_not_answered() -> None:
    console = RemoteConsole(make_bmc()).open()
    assert console.send(6, 0x3C, struct.pack("<I", console.session_id)) == b"\x00"
    assert console.outgoing(6, 1) == []


def test_closing_a_session_that_does_not_exist_says_so() -> None:
    console = RemoteConsole(make_bmc()).open()
    assert console.send(6, 0x3C, struct.pack("<I", console.session_id ^ 1)) == b"\x87"
    assert console.send(6, 0x3C, bytes(4) + b"\x77") == b"\x88"


def test_the_level_starts_at_user_and_rises_to_what_was_asked() -> None:
    console = RemoteConsole(make_bmc()).open()
    assert console.send(0, 2, b"\x01") == b"\xd4"
    assert console.send(6, 0x3B, b"\x00") == b"\x00\x02"
    assert console.send(6, 0x3B, b"\x04") == b"\x00\x04"
    assert console.send(0, 2, b"\x01") == b"\x00"


def test_a_level_beyond_the_users_or_the_sessions_limit_is_refused() -> None:
    bmc = make_bmc()
    operator = RemoteConsole(bmc, user="operator", password=b"op", level=3).open()
    assert operator.send(6, 0x3B, b"\x04") == b"\x80"
    assert operator.send(6, 0x3B, b"\x03") == b"\x00\x03"
    low = RemoteConsole(bmc, level=3, remote_id=9).open()
    assert low.send(6, 0x3B, b"\x04") == b"\x81"


def test_the_channels_limit_binds_every_user() -> None:
    bmc = make_bmc(channel_limit=Privilege.OPERATOR)
    assert RemoteConsole(bmc).open().statuses == [0, RmcpStatus.UNAUTHORISED_ROLE]


def test_a_repeated_sequence_number_is_dropped() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc).open()
    packet = console.request(6, 1)
    assert len(bmc.receive(packet, PEER)) == 1
    assert bmc.receive(packet, PEER) == []


def test_sequence_numbers_may_overtake_each_other_within_the_window() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc).open()
    packets = [console.request(6, 1) for _ in range(15)]
    assert len(bmc.receive(packets[14], PEER)) == 1
    assert all(len(bmc.receive(packet, PEER)) == 1 for packet in packets[:14])
    assert bmc.receive(packets[3], PEER) == []
    console.sequence += 100
    assert console.outgoing(6, 1) == []


def test_a_packet_with_a_wrong_integrity_code_is_dropped() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc).open()
    packet = console.request(6, 1)
    assert bmc.receive(packet[:-1] + bytes((packet[-1] ^ 1,)), PEER) == []
    assert len(bmc.receive(packet, PEER)) == 1


def test_an_unprotected_packet_for_a_protected_session_is_dropped() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc).open()
    body = b"\x20\x18\xc8\x81\x04\x01\x7a"
    plain = RMCP + struct.pack("<BBIIH", 6, 0, console.session_id, 1, len(body)) + body
    assert bmc.receive(plain, PEER) == []


def test_session_info_tells_the_console() -> None:
    console = RemoteConsole(make_bmc()).open()
    info = console.send(6, 0x3D, b"\x00")
    assert info[1:6] == bytes((1, 8, 1, 2, 2))
    assert info[7:11] == bytes((127, 0, 0, 1))
    assert struct.unpack("<H", info[-2:])[0] == PEER[1]


def test_the_guid_goes_out_last_byte_first() -> None:
    identity = Identity.numbered(1)
    console = RemoteConsole(make_bmc(identity=identity)).open()
    assert console.send(6, 0x37)[1:] == identity.guid
    assert Identity.numbered(1).guid == identity.guid != Identity.numbered(2).guid


@pytest.mark.parametrize(
    "datagram", [b"", b"\x06", b"\x05\x00\xff\x07aaaa", RMCP, RMCP + b"\x06\x10", RMCP + b"\x00" * 9]
)
def test_broken_datagrams_are_dropped(datagram: bytes) -> None:
    assert make_bmc().receive(datagram, PEER) == []


def test_every_cut_of_a_good_datagram_is_dropped() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc).open()
    packets = [sessionless(6, 0x38, b"\x8e\x04"), console.open_request(), console.rakp1(), console.request(6, 1)]
    for packet in packets:
        for length in range(len(packet)):
            assert bmc.receive(packet[:length], PEER) == []


def test_a_restart_of_the_bmc_loses_sessions_and_keeps_the_machine_running() -> None:
    clock = Clock()
    bmc = make_bmc(clock, restart_seconds=30)
    console = RemoteConsole(bmc).open()
    console.send(6, 0x3B, b"\x04")
    assert console.send(6, 0x02) == b"\x00"
    assert bmc.receive(sessionless(6, 0x38, b"\x8e\x04"), PEER) == []
    clock.pass_(30)
    assert console.outgoing(6, 1) == []
    assert RemoteConsole(bmc).open().statuses == [0, 0, 0]
    assert bmc.machine.is_on
    assert bmc.machine.boots == []


def test_the_journal_names_session_user_and_outcome_but_no_secret() -> None:
    bmc = make_bmc()
    console = RemoteConsole(bmc).open()
    console.send(6, 0x3B, b"\x04")
    console.send(6, 0x47, b"\x03\x02" + b"hunter2".ljust(16, b"\0"))
    (entry,) = bmc.journal.executed(6, 0x47)
    assert (entry.user, entry.session_id, entry.outcome, entry.data) == ("admin", console.session_id, 0, b"\x03\x02")
    assert [entry.phase for entry in bmc.journal][:3] == [Phase.OPEN_SESSION, Phase.RAKP_1, Phase.RAKP_3]
    text = repr(list(bmc.journal)) + repr(bmc.users.slot(2)) + repr(list(bmc.sessions)) + repr(bmc.users.slot(3))
    assert "hunter2" not in text
    assert "secret" not in text
