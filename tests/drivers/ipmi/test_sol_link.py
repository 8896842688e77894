"""The SOL payload's state machine against a port that loses, repeats, refuses and takes in part."""

from random import Random

import pytest

from drivers.ipmi.sol import SolFlag, SolPacket, SolStatus, parse_sol, sol_payload
from drivers.ipmi.sol_link import SolLink
from simulators.ipmi.console import Console, SolTiming
from simulators.ipmi.console import SolLink as Port
from simulators.ipmi.console import SolPacket as PortPacket

ROOM = 10_000


def acknowledged(sequence: int, accepted: int, flags: int = 0) -> SolPacket:
    return SolPacket(0, sequence, accepted, flags)


def sent(payloads: list[bytes] | tuple[bytes, ...]) -> list[tuple[int, int, bytes]]:
    """Number, flags and characters of each packet with characters."""
    return [(p.sequence, p.flags, p.characters) for p in map(parse_sol, payloads) if p.sequence]


def test_one_packet_is_under_way_at_a_time() -> None:
    link = SolLink(4)
    assert sent(link.type(b"abcdef", 0.0)) == [(1, 0, b"abcd")]
    assert link.type(b"gh", 0.1) == []
    assert sent(link.receive(acknowledged(1, 4), ROOM, 0.2).answers) == [(2, 0, b"efgh")]
    assert link.receive(acknowledged(2, 4), ROOM, 0.3).answers == ()
    assert link.pending == 0


def test_a_packet_without_an_answer_is_sent_again_under_its_number() -> None:
    link = SolLink(255)
    link.type(b"x", 0.0)
    assert link.pump(0.4) == []
    assert sent(link.pump(0.5)) == [(1, 0, b"x")]
    assert link.next_due() == 1.5
    assert not link.is_stalled(29.0)
    assert link.is_stalled(31.0)


def test_characters_taken_in_part_are_sent_again_at_once_under_a_new_number() -> None:
    link = SolLink(255)
    link.type(b"abcdef", 0.0)
    assert sent(link.receive(acknowledged(1, 2), ROOM, 0.1).answers) == [(2, 0, b"cdef")]


def test_refused_characters_are_offered_again_after_a_while() -> None:
    link = SolLink(255)
    link.type(b"ab", 0.0)
    assert link.receive(acknowledged(1, 0, SolStatus.NACK), ROOM, 0.1).answers == ()
    assert link.pump(0.5) == []
    assert sent(link.pump(0.7)) == [(2, 0, b"ab")]
    # A BMC that refuses for ever is there all the same.
    assert link.receive(acknowledged(2, 0, SolStatus.NACK), ROOM, 60.0).answers == ()
    assert not link.is_stalled(80.0)


def test_more_acknowledged_than_was_sent_is_all_of_it() -> None:
    link = SolLink(255)
    link.type(b"ab", 0.0)
    link.receive(acknowledged(1, 255), ROOM, 0.1)
    assert link.pending == 0


def test_an_answer_to_an_earlier_packet_changes_nothing() -> None:
    link = SolLink(255)
    link.type(b"ab", 0.0)
    link.receive(acknowledged(9, 2), ROOM, 0.1)
    assert link.pending == 2


def test_a_break_goes_between_the_characters_where_it_was_sent() -> None:
    link = SolLink(255)
    assert sent(link.type(b"a", 0.0)) == [(1, 0, b"a")]
    link.send_break(0.0)
    link.type(b"b", 0.0)
    assert sent(link.receive(acknowledged(1, 1), ROOM, 0.1).answers) == [(2, SolFlag.BREAK, b"")]
    assert sent(link.receive(acknowledged(2, 0), ROOM, 0.2).answers) == [(3, 0, b"b")]


def test_characters_from_the_machine_are_acknowledged_and_read_once() -> None:
    link = SolLink(255)
    packet = SolPacket(1, 0, 0, 0, b"login: ")
    first, again = link.receive(packet, ROOM, 0.0), link.receive(packet, ROOM, 0.5)
    assert (first.characters, again.characters) == (b"login: ", b"")
    assert first.answers == again.answers == (sol_payload(acknowledged(1, 7)),)


def test_a_reader_without_room_takes_in_part_and_then_not_at_all() -> None:
    link = SolLink(255)
    part = link.receive(SolPacket(1, 0, 0, 0, b"abcdef"), 4, 0.0)
    assert (part.characters, part.answers) == (b"abcd", (sol_payload(acknowledged(1, 4)),))
    full = link.receive(SolPacket(2, 0, 0, 0, b"ef"), 0, 0.1)
    assert (full.characters, full.answers) == (b"", ())
    assert link.receive(SolPacket(2, 0, 0, 0, b"ef"), 4, 0.6).characters == b"ef"


def test_the_bmc_can_end_it_and_tell_of_lost_characters() -> None:
    link = SolLink(255)
    assert link.receive(SolPacket(0, 0, 0, SolStatus.DEACTIVATING), ROOM, 0.0).ended
    assert link.receive(SolPacket(0, 0, 0, SolStatus.TRANSMIT_OVERRUN), ROOM, 0.0).lost


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_doubled_whatever_the_network_does(seed: int) -> None:
    """Against the simulator's port, with packets lost, refused and taken in part."""
    chance, now = Random(seed), 0.0
    console = Console(lambda text: b"")
    port = Port(
        console, 1, clock=lambda: now, timing=SolTiming(retries=10_000), inbound_size=4 + chance.randint(1, 9),
        outbound_size=4 + chance.randint(1, 9),
    )  # fmt: skip
    link = SolLink(chance.randint(1, 20))
    typed, written = (
        bytes(chance.randrange(256) for _ in range(300)),
        bytes(chance.randrange(256) for _ in range(300)),
    )
    console.write(written)
    to_port, to_us, read = link.type(typed, now), port.pump(), bytearray()
    while link.pending or console.has_output or len(read) < len(written):
        now += 0.3
        for payload in [*to_port, *link.pump(now)]:
            if chance.random() < 0.7:
                to_us += port.receive(PortPacket.parse(payload), refuse=chance.random() < 0.2)
        to_port = []
        for payload in [*to_us, *port.pump()]:
            if chance.random() < 0.7:
                heard = link.receive(parse_sol(payload), chance.randint(0, 20), now)
                read += heard.characters
                to_port += heard.answers
        to_us = []
    assert bytes(console.received) == typed
    assert bytes(read) == written
