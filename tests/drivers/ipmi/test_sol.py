"""Serial over LAN: packets, sizes as BMCs tell them, and how often a console is taken over."""

import pytest

from drivers.ipmi.packets import Message, PacketError
from drivers.ipmi.sol import (
    ActivationPlan,
    Move,
    SolFlag,
    SolPacket,
    SolStatus,
    activate_command,
    deactivate_command,
    parse_activation,
    parse_sol,
    sol_payload,
)
from protocol.errors import ErrorCode, OperationError


def answer(code: int) -> Message:
    return Message(0x07, 0x48, 1, code, b"")


def activation(inbound: int, outbound: int = 255) -> bytes:
    return bytes(4) + inbound.to_bytes(2, "little") + outbound.to_bytes(2, "little") + b"\x6f\x02\xff\xff"


def test_packets_are_written_and_read() -> None:
    sent = SolPacket(3, 2, 5, SolFlag.BREAK, b"reboot\r")
    assert sol_payload(sent) == b"\x03\x02\x05\x10reboot\r"
    assert parse_sol(b"\x04\x03\x07\x50login: ") == SolPacket(
        4, 3, 7, SolStatus.NACK | SolStatus.DEACTIVATING, b"login: "
    )


def test_packets_out_of_bounds_are_refused() -> None:
    with pytest.raises(PacketError):
        parse_sol(b"\x01\x00\x00")
    with pytest.raises(ValueError, match="0 to 15"):
        sol_payload(SolPacket(16, 0, 0, 0))
    with pytest.raises(ValueError, match="at most 255"):
        sol_payload(SolPacket(1, 0, 0, 0, bytes(256)))


@pytest.mark.case("B46")
@pytest.mark.parametrize(
    ("told", "sane"),
    [(0x0001, 252), (0xFF00, 251), (0xFFFF, 255), (0, 255), (4, 255), (68, 64), (259, 255), (900, 255)],
)
def test_the_size_that_a_bmc_tells_is_made_sane(told: int, sane: int) -> None:
    assert parse_activation(activation(told)).to_bmc == sane


@pytest.mark.case("B46")
def test_every_told_size_gives_one_to_two_hundred_and_fifty_five_characters() -> None:
    assert all(1 <= parse_activation(activation(told)).to_bmc <= 255 for told in range(0, 0x10000, 7))


def test_the_port_is_the_one_that_the_bmc_names() -> None:
    assert parse_activation(activation(255)).port == 623
    with pytest.raises(PacketError):
        parse_activation(bytes(11))


@pytest.mark.case("B46")
def test_a_console_held_elsewhere_is_taken_over_once() -> None:
    plan = ActivationPlan("192.0.2.1:623", take_over=True)
    assert plan.answered(answer(0x80)) is Move.DEACTIVATE
    assert plan.answered(answer(0x00)) is Move.DONE


@pytest.mark.case("B46")
@pytest.mark.parametrize("take_over", [True, False])
def test_a_console_that_stays_held_is_a_conflict(take_over: bool) -> None:
    plan = ActivationPlan("192.0.2.1:623", take_over=take_over)
    if take_over:
        plan.answered(answer(0x80))
    with pytest.raises(OperationError, match="take it over") as caught:
        plan.answered(answer(0x80))
    assert caught.value.code is ErrorCode.CONFLICT


@pytest.mark.case("B46")
def test_a_console_that_is_switched_off_says_where_to_switch_it_on() -> None:
    with pytest.raises(OperationError, match="enable it in the BMC's settings") as caught:
        ActivationPlan("192.0.2.1:623", take_over=True).answered(answer(0x81))
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_any_other_refusal_keeps_the_bmcs_words() -> None:
    with pytest.raises(OperationError, match="activation limit reached"):
        ActivationPlan("192.0.2.1:623", take_over=True).answered(answer(0x82))


def test_the_commands_name_the_payload_and_its_protection() -> None:
    assert activate_command().data.hex() == "0101c0000000"
    assert deactivate_command().data.hex() == "010100000000"
