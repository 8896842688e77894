"""Serial over LAN: who holds the console, how characters are acknowledged, and when it ends."""

import struct

import pytest

from simulators.ipmi import FaultRule, IpmiBmc, Phase
from simulators.ipmi.console import Console
from tests.simulators.ipmi_remote_console import Clock, RemoteConsole, make_bmc

ACTIVATE = (6, 0x48, b"\x01\x01\xc0\x00\x00\x00")
DEACTIVATE = (6, 0x49, b"\x01\x01\x00\x00\x00\x00")


def connect(bmc: IpmiBmc, remote_id: int = 1) -> RemoteConsole:
    """An administrator's session."""
    console = RemoteConsole(bmc, remote_id=remote_id, peer=("127.0.0.1", 40_000 + remote_id)).open()
    console.send(6, 0x3B, b"\x04")
    return console


def payloads(console: RemoteConsole, packet: bytes) -> list[bytes]:
    """The SOL payloads that the BMC sends for a datagram."""
    return [console.unwrap(outgoing.packet) for outgoing in console.bmc.receive(packet, console.peer)]


def test_activation_tells_sizes_and_port() -> None:
    bmc = make_bmc()
    answer = connect(bmc).send(*ACTIVATE)
    code, _, inbound, outbound, port, vlan = struct.unpack("<BIHHHH", answer)
    assert (code, inbound, outbound, port, vlan) == (0, 255, 255, 623, 0xFFFF)


@pytest.mark.case("B46")
def test_a_console_in_use_is_refused_until_it_is_deactivated_and_its_holder_is_told() -> None:
    bmc = make_bmc()
    holder, other = connect(bmc, 1), connect(bmc, 2)
    assert holder.send(*ACTIVATE)[0] == 0
    assert other.send(*ACTIVATE) == b"\x80"
    assert other.send(*DEACTIVATE) == b"\x00"
    (farewell,) = bmc.tick()
    assert farewell.peer == holder.peer
    assert holder.unwrap(farewell.packet)[3] & 0x10
    assert other.send(*DEACTIVATE) == b"\x80"
    assert other.send(*ACTIVATE)[0] == 0


@pytest.mark.case("B46")
def test_a_disabled_console_is_81() -> None:
    bmc = make_bmc()
    console = connect(bmc)
    assert console.send(0x0C, 0x21, b"\x01\x01\x00") == b"\x00"
    assert console.send(*ACTIVATE) == b"\x81"


def test_a_user_without_the_payload_is_81() -> None:
    bmc = make_bmc()
    console = connect(bmc)
    assert console.send(6, 0x4C, b"\x01\x42\x02\x00\x00\x00") == b"\x00"
    assert console.send(6, 0x4D, b"\x01\x02") == b"\x00\x00\x00\x00\x00"
    assert console.send(*ACTIVATE) == b"\x81"


def test_a_console_without_encryption_is_84_where_it_is_forced() -> None:
    assert connect(make_bmc()).send(6, 0x48, b"\x01\x01\x00\x00\x00\x00") == b"\x84"


@pytest.mark.case("B46")
def test_the_inbound_size_may_be_told_with_its_bytes_swapped() -> None:
    bmc = make_bmc(faults=[FaultRule(netfn=6, cmd=0x48, odd_size=0x0001)])
    assert struct.unpack_from("<H", connect(bmc).send(*ACTIVATE), 5)[0] == 1


def test_typed_characters_are_acknowledged_and_come_back() -> None:
    bmc = make_bmc()
    console = connect(bmc)
    console.send(*ACTIVATE)
    acknowledged, echo = payloads(console, console.sol(1, data=b"ls\r"))
    assert acknowledged == bytes((0, 1, 3, 0))
    assert echo == bytes((1, 0, 0, 0)) + b"ls\r\n"
    assert bytes(bmc.console.received) == b"ls\r"
    assert payloads(console, console.sol(0, acknowledged=1, accepted=4)) == []


def test_a_repeated_packet_is_acknowledged_again_and_typed_once() -> None:
    bmc = make_bmc(console=Console(lambda text: b""))
    console = connect(bmc)
    console.send(*ACTIVATE)
    for _ in range(3):
        assert payloads(console, console.sol(1, data=b"x")) == [bytes((0, 1, 1, 0))]
    assert bytes(bmc.console.received) == b"x"


def test_more_characters_than_fit_are_taken_in_part() -> None:
    bmc = make_bmc(console=Console(lambda text: b""))
    bmc.sol_inbound_size = 14
    console = connect(bmc)
    console.send(*ACTIVATE)
    assert payloads(console, console.sol(1, data=b"0123456789abcdef")) == [bytes((0, 1, 10, 0))]
    assert bytes(bmc.console.received) == b"0123456789"


def test_output_waits_for_its_acknowledgement_is_repeated_and_given_up() -> None:
    clock = Clock()
    bmc = make_bmc(clock)
    console = connect(bmc)
    console.send(0x0C, 0x21, b"\x01\x04\x02\x32")
    console.send(*ACTIVATE)
    bmc.console.write(b"login: ")
    sent = []
    for _ in range(6):
        sent += [console.unwrap(outgoing.packet) for outgoing in bmc.tick()]
        clock.pass_(0.5)
    assert sent == [bytes((1, 0, 0, 0)) + b"login: "] * 3
    assert bmc.sol is not None
    assert bmc.sol.lost_packets == 1


def test_output_that_was_taken_in_part_or_refused_is_sent_again() -> None:
    bmc = make_bmc(console=Console(lambda text: b""))
    console = connect(bmc)
    console.send(*ACTIVATE)
    bmc.console.write(b"abcdef")
    bmc.tick()
    assert payloads(console, console.sol(0, acknowledged=1, accepted=2)) == [bytes((2, 0, 0, 0)) + b"cdef"]
    assert payloads(console, console.sol(0, acknowledged=2, operation=0x40)) == [bytes((3, 0, 0, 0)) + b"cdef"]


def test_long_output_is_cut_and_numbers_go_from_15_to_1() -> None:
    bmc = make_bmc(console=Console(lambda text: b""))
    bmc.sol_outbound_size = 5
    console = connect(bmc)
    console.send(*ACTIVATE)
    bmc.console.write(b"0123456789abcdefg")
    parts = [console.unwrap(outgoing.packet) for outgoing in bmc.tick()]
    while parts[-1][4:] != b"g":
        parts += payloads(console, console.sol(0, acknowledged=parts[-1][0], accepted=1))
    assert b"".join(part[4:] for part in parts) == b"0123456789abcdefg"
    assert [part[0] for part in parts] == [*range(1, 16), 1, 2]


def test_a_break_reaches_the_machine() -> None:
    bmc = make_bmc()
    console = connect(bmc)
    console.send(*ACTIVATE)
    payloads(console, console.sol(1, operation=0x10))
    assert bmc.console.breaks == 1


def test_characters_may_be_refused_on_demand() -> None:
    bmc = make_bmc(faults=[FaultRule(phase=Phase.SOL, nack=True, count=1)])
    console = connect(bmc)
    console.send(*ACTIVATE)
    assert payloads(console, console.sol(1, data=b"x")) == [bytes((0, 1, 0, 0x40))]
    assert payloads(console, console.sol(1, data=b"x"))[0] == bytes((0, 1, 1, 0))


def test_a_script_answers_the_console() -> None:
    bmc = make_bmc(console=Console(lambda text: b"Password: " if text == b"root\r" else b""))
    console = connect(bmc)
    console.send(*ACTIVATE)
    assert payloads(console, console.sol(1, data=b"root\r"))[1][4:] == b"Password: "


@pytest.mark.case("B46")
def test_a_closed_session_and_a_restarted_bmc_free_the_console() -> None:
    bmc = make_bmc(restart_seconds=0)
    holder = connect(bmc, 1)
    holder.send(*ACTIVATE)
    holder.send(6, 0x3C, struct.pack("<I", holder.session_id))
    assert bmc.sol is None
    second = connect(bmc, 2)
    assert second.send(*ACTIVATE)[0] == 0
    bmc.restart()
    assert bmc.sol is None
    assert bmc.receive(second.sol(1, data=b"x"), second.peer) == []


def test_the_console_may_end_with_the_power() -> None:
    bmc = make_bmc()
    bmc.sol_ends_with_power = True
    console = connect(bmc)
    console.send(*ACTIVATE)
    console.send(0, 2, b"\x00")
    assert bmc.sol is None
    (farewell,) = bmc.tick()
    assert console.unwrap(farewell.packet)[3] & 0x10


def test_the_payload_commands_tell_who_is_active() -> None:
    bmc = make_bmc()
    console = connect(bmc)
    assert console.send(6, 0x4A, b"\x01") == b"\x00\x01\x00\x00"
    console.send(*ACTIVATE)
    assert console.send(6, 0x4A, b"\x01") == b"\x00\x01\x01\x00"
    assert console.send(6, 0x4B, b"\x01\x01")[1:5] == struct.pack("<I", console.session_id)
    assert console.send(6, 0x4E, b"\x01")[1] == 0x03
    assert console.send(6, 0x4F, b"\x01\x01") == b"\x00\x10"
