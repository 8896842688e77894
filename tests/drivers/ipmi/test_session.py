"""The session's state machine: matching answers, and ignoring whatever else comes."""

from drivers.ipmi.handshake import Privilege
from drivers.ipmi.packets import Message, PayloadType, SessionKeys, parse_packet, sealed_packet, unsealed
from drivers.ipmi.session import Session, SolPayload

KEYS = SessionKeys("sha1", 12, b"k" * 20, b"c" * 16)
CONSOLE, BMC = 0xAABBCCDD, 0x11223344


def session() -> Session:
    return Session(KEYS, CONSOLE, BMC, Privilege.USER)


def from_bmc(
    sequence: int, rq_seq: int, *, command: int = 1, data: bytes = b"\x21\x00\x00", to: int = CONSOLE
) -> bytes:
    head = bytes((0x81, 0x01 << 2))
    body = bytes((0x20, rq_seq << 2, command, 0)) + data
    message = head + bytes((-sum(head) & 0xFF,)) + body + bytes((-sum(body) & 0xFF,))
    return sealed_packet(KEYS, PayloadType.IPMI, to, sequence, message)


def test_each_sending_has_a_new_session_sequence_and_the_same_request_number() -> None:
    ours = session()
    rq_seq = ours.begin(0x00, 0x01)
    sent = [ours.request(0x00, 0, rq_seq, 0x01, b"") for _ in range(3)]
    assert [parse_packet(datagram).sequence for datagram in sent] == [1, 2, 3]
    assert len({unsealed(KEYS, datagram, parse_packet(datagram)) for datagram in sent}) == 1


def test_the_outstanding_commands_answer_is_taken_once() -> None:
    ours = session()
    rq_seq = ours.begin(0x00, 0x01)
    assert isinstance(ours.receive(from_bmc(1, rq_seq)), Message)
    assert ours.receive(from_bmc(2, rq_seq)) is None
    assert ours.ignored == 1


def test_a_late_answer_to_an_earlier_command_is_ignored() -> None:
    ours = session()
    earlier = ours.begin(0x00, 0x01)
    later = ours.begin(0x00, 0x01)
    assert ours.receive(from_bmc(1, earlier)) is None
    assert ours.receive(from_bmc(2, later)) is not None


def test_a_replayed_packet_is_ignored_though_its_numbers_fit() -> None:
    ours = session()
    rq_seq = ours.begin(0x00, 0x01)
    assert ours.receive(from_bmc(5, rq_seq)) is not None
    for _ in range(64):
        rq_seq = ours.begin(0x00, 0x01)
    assert ours.receive(from_bmc(5, rq_seq)) is None
    assert ours.receive(from_bmc(6, rq_seq)) is not None


def test_packets_that_overtake_each_other_are_taken_and_very_old_ones_are_not() -> None:
    ours = session()
    assert ours.receive(from_bmc(100, ours.begin(0x00, 0x01))) is not None
    assert ours.receive(from_bmc(98, ours.begin(0x00, 0x01))) is not None
    assert ours.receive(from_bmc(98, ours.begin(0x00, 0x01))) is None
    assert ours.receive(from_bmc(60, ours.begin(0x00, 0x01))) is None


def test_the_sequence_number_may_wrap() -> None:
    ours = session()
    assert ours.receive(from_bmc(0x7FFFFFF0, ours.begin(0x00, 0x01))) is not None
    assert ours.receive(from_bmc(0xFFFFFFFF, ours.begin(0x00, 0x01))) is None
    assert ours.receive(from_bmc(0x7FFFFFFF, ours.begin(0x00, 0x01))) is not None


def test_garbage_other_sessions_and_other_commands_are_ignored() -> None:
    ours = session()
    rq_seq = ours.begin(0x00, 0x01)
    strange = [b"", b"\x06\x00\xff\x07", bytes(64), from_bmc(1, rq_seq, to=1), from_bmc(2, rq_seq, command=9)]
    assert [ours.receive(datagram) for datagram in strange] == [None] * len(strange)
    assert ours.receive(from_bmc(3, rq_seq)) is not None


def test_a_console_packet_passes_beside_the_outstanding_command() -> None:
    ours = session()
    rq_seq = ours.begin(0x00, 0x01)
    console = sealed_packet(KEYS, PayloadType.SOL, CONSOLE, 1, b"\x01\x00\x00\x00login:")
    assert ours.receive(console) == SolPayload(b"\x01\x00\x00\x00login:")
    assert ours.receive(from_bmc(2, rq_seq)) is not None
    sent = ours.sol(b"\x00\x01\x06\x00")
    assert parse_packet(sent).payload_type == PayloadType.SOL


def console(sequence: int, characters: bytes) -> bytes:
    return sealed_packet(KEYS, PayloadType.SOL, CONSOLE, sequence, b"\x01\x00\x00\x00" + characters)


def test_a_console_packet_that_a_later_one_has_overtaken_is_not_taken_for_new_characters() -> None:
    ours = session()
    assert isinstance(ours.receive(console(2, b"sent again")), SolPayload)
    assert isinstance(ours.receive(console(3, b"next")), SolPayload)
    assert ours.receive(console(1, b"sent first, and late")) is None
    assert isinstance(ours.receive(console(4, b"next")), SolPayload)


def test_an_answer_that_overtakes_a_console_packet_costs_it_nothing() -> None:
    ours = session()
    assert isinstance(ours.receive(from_bmc(2, ours.begin(0x00, 0x01))), Message)
    assert isinstance(ours.receive(console(1, b"login:")), SolPayload)


def test_the_sequence_number_of_console_packets_may_wrap() -> None:
    ours = session()
    for sequence in (0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 1):
        assert isinstance(ours.receive(console(sequence, b"x")), SolPayload)
