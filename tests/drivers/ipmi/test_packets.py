"""RMCP+ packets and LAN messages, byte by byte."""

import pytest

from drivers.ipmi.packets import (
    PacketError,
    PayloadType,
    SessionKeys,
    message_request,
    parse_message,
    parse_packet,
    plain_packet,
    sealed_packet,
    sessionless_packet,
    unsealed,
)

KEYS = SessionKeys("sha256", 16, bytes(range(32)), bytes(range(16)))


def answer(
    netfn: int = 0x01, command: int = 0x01, rq_seq: int = 1, code: int = 0, data: bytes = b"\x21\x00\x40"
) -> bytes:
    head = bytes((0x81, netfn << 2))
    body = bytes((0x20, rq_seq << 2, command, code)) + data
    return head + bytes((-sum(head) & 0xFF,)) + body + bytes((-sum(body) & 0xFF,))


def test_the_capability_question_is_the_one_that_ipmitool_sends() -> None:
    request = message_request(0x06, 0, 0, 0x38, b"\x8e\x04")
    assert sessionless_packet(request).hex() == "0600ff07000000000000000000092018c88100388e04b5"


def test_a_set_up_payload_is_sent_in_clear_outside_any_session() -> None:
    packet = parse_packet(plain_packet(PayloadType.RAKP_1, b"abc"))
    assert (packet.payload_type, packet.payload) == (PayloadType.RAKP_1, b"abc")
    assert not packet.authenticated
    assert not packet.encrypted
    assert packet.session_id == packet.sequence == 0


@pytest.mark.parametrize("length", range(40))
def test_what_is_sealed_comes_out_again_whatever_its_length(length: int) -> None:
    payload = bytes(range(length))
    datagram = sealed_packet(KEYS, PayloadType.IPMI, 0x01020304, 7, payload)
    packet = parse_packet(datagram)
    assert (packet.session_id, packet.sequence) == (0x01020304, 7)
    assert unsealed(KEYS, datagram, packet) == payload


def test_the_authenticated_part_is_a_multiple_of_four_bytes_long() -> None:
    for length in range(20):
        datagram = sealed_packet(KEYS, PayloadType.IPMI, 1, 1, bytes(length))
        assert (len(datagram) - 4 - KEYS.integrity_length) % 4 == 0


def test_a_packet_with_one_bit_changed_is_refused_wherever_the_bit_is() -> None:
    datagram = sealed_packet(KEYS, PayloadType.IPMI, 1, 1, b"payload")
    for position in range(4, len(datagram)):
        forged = bytearray(datagram)
        forged[position] ^= 0x01
        with pytest.raises(PacketError):
            unsealed(KEYS, bytes(forged), parse_packet(bytes(forged)))


def test_a_packet_that_is_not_sealed_is_refused_in_a_session() -> None:
    datagram = plain_packet(PayloadType.IPMI, answer())
    with pytest.raises(PacketError, match="not sealed"):
        unsealed(KEYS, datagram, parse_packet(datagram))


def test_a_datagram_cut_anywhere_is_an_error_and_never_a_value() -> None:
    datagram = sealed_packet(KEYS, PayloadType.IPMI, 1, 1, b"payload")
    for length in range(len(datagram)):
        with pytest.raises(PacketError):
            unsealed(KEYS, datagram[:length], parse_packet(datagram[:length]))


def test_an_answer_is_read_with_its_numbers_and_data() -> None:
    message = parse_message(answer(rq_seq=9, code=0xC0, data=b"xyz"))
    assert (message.netfn, message.command, message.rq_seq) == (1, 1, 9)
    assert (message.completion_code, message.data) == (0xC0, b"xyz")


@pytest.mark.parametrize("position", range(len(answer())))
def test_an_answer_with_a_wrong_checksum_is_refused(position: int) -> None:
    spoiled = bytearray(answer())
    spoiled[position] ^= 0x10
    with pytest.raises(PacketError, match="checksum"):
        parse_message(bytes(spoiled))


def test_a_request_is_no_answer() -> None:
    with pytest.raises(PacketError, match="request"):
        parse_message(answer(netfn=0x06))


def test_keys_are_not_shown() -> None:
    assert KEYS.cipher_key.hex() not in repr(KEYS)
    assert repr(KEYS) == "SessionKeys(sha256)"
