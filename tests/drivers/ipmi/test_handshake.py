"""The key exchange, held against one that `ipmi_sim` 2.0.33 took part in (cipher suite 3, user admin)."""

import pytest

from drivers.ipmi.handshake import (
    SUITE_3,
    SUITE_17,
    Login,
    Privilege,
    open_session_request,
    parse_open_session_answer,
    parse_rakp2,
    parse_rakp4,
    suite_of,
)
from drivers.ipmi.packets import PacketError, message_request, parse_message, parse_packet, unsealed

OPEN_REQUEST = "3b040000ff050a6f000000080100000001000008010000000200000801000000"
OPEN_ANSWER = "3b000400ff050a6f82010000000000080100000001000008010000000200000801000000"
RAKP_1 = "3b0000008201000042f47f66adbafcbbc20c17e46eccefd21400000561646d696e"
RAKP_2 = (
    "3b000000ff050a6fd83ca20b5297dc842bc1664c67c800a6a123456789abcdefa123456789abcdef"
    "62d4910df51062d0507f6ce26730dba5bb4be53b"
)
RAKP_3 = "3b000000820100005f7fae0b7e6e069811c8a08274f186c4d3daf89e"
RAKP_4 = "3b000000ff050a6f4ec9e2b6e643c78593e5ad05"
STATUS_REQUEST = bytes.fromhex(
    "0600ff0706c082010000020000002000d9434b69a2fd18db51078cf613872d67618d4a467232c315ac5fab1146636e88ffff0207"
    "d6a9f18daf3abb6499d58df5"
)
STATUS_ANSWER = bytes.fromhex(
    "0600ff0706c0ff050a6f02000000200085cb595920195b8723cb3fc954deec7f9128b0b961638bed00033d526f967171ffff0207"
    "7a0a71b2f837304a4a5ec870"
)


def recorded() -> Login:
    """The console's side of the recorded exchange, before RAKP 2."""
    opened = parse_open_session_answer(bytes.fromhex(OPEN_ANSWER))
    return Login(
        suite=SUITE_3,
        role=Privilege.ADMINISTRATOR | 0x10,
        username=b"admin",
        key=b"secret",
        console_session=opened.console_session,
        bmc_session=opened.bmc_session,
        console_random=bytes.fromhex(RAKP_1)[8:24],
    )


def answered(key: bytes = b"secret") -> Login:
    """The same after RAKP 2, with this password."""
    login, answer = recorded(), parse_rakp2(bytes.fromhex(RAKP_2))
    login.hear(answer)
    assert login.accepts(answer.code, ((login.role, key),)) is (key == b"secret")
    return login


def test_the_proposal_is_byte_for_byte_the_recorded_one() -> None:
    assert open_session_request(0x3B, SUITE_3, Privilege.ADMINISTRATOR, 0x6F0A05FF).hex() == OPEN_REQUEST


def test_the_bmc_names_its_session_and_the_suite_it_takes() -> None:
    opened = parse_open_session_answer(bytes.fromhex(OPEN_ANSWER))
    assert (opened.status, opened.console_session, opened.bmc_session) == (0, 0x6F0A05FF, 0x182)
    assert suite_of(opened.algorithms) is SUITE_3
    assert suite_of((3, 4, 1)) is SUITE_17
    assert suite_of((0, 0, 0)) is None


def test_rakp_1_is_byte_for_byte_the_recorded_one() -> None:
    assert recorded().rakp1(0x3B).hex() == RAKP_1


def test_the_bmcs_proof_is_accepted_and_our_own_is_the_recorded_one() -> None:
    assert answered().rakp3(0x3B).hex() == RAKP_3


def test_the_session_key_is_proven_by_rakp_4() -> None:
    assert answered().rakp4_check() == parse_rakp4(bytes.fromhex(RAKP_4)).check


def test_another_password_is_noticed_before_anything_is_proven_to_the_bmc() -> None:
    login = answered(key=b"secret2")
    assert login.hashed_role == -1


def test_the_derived_keys_open_the_recorded_commands() -> None:
    keys = answered().session_keys()
    request = unsealed(keys, STATUS_REQUEST, parse_packet(STATUS_REQUEST))
    assert request == message_request(0x00, 0, 2, 0x01, b"")
    answer = parse_message(unsealed(keys, STATUS_ANSWER, parse_packet(STATUS_ANSWER)))
    assert (answer.netfn, answer.command, answer.rq_seq, answer.completion_code) == (1, 1, 2, 0)
    assert answer.data[:3] == b"\x00\x00\x00"


def test_a_bmc_that_hashes_the_plain_privilege_is_recognised_without_a_second_login() -> None:
    login, quirky = recorded(), recorded()
    answer = parse_rakp2(bytes.fromhex(RAKP_2))
    for side in (login, quirky):
        side.hear(answer)
    code = quirky.rakp2_code(Privilege.ADMINISTRATOR, b"secret")
    assert login.accepts(code, ((0x14, b"secret"), (0x04, b"secret")))
    assert login.hashed_role == Privilege.ADMINISTRATOR


def test_a_refusal_may_be_as_short_as_its_status() -> None:
    assert parse_open_session_answer(b"\x01\x11").status == 0x11
    assert parse_rakp2(b"\x01\x0d").status == 0x0D
    assert parse_rakp4(b"\x01\x0f").status == 0x0F


@pytest.mark.parametrize(("parse", "text"), [(parse_open_session_answer, OPEN_ANSWER), (parse_rakp2, RAKP_2)])
def test_an_acceptance_that_is_cut_short_is_an_error(parse: object, text: str) -> None:
    assert callable(parse)
    for length in range(36):
        with pytest.raises(PacketError):
            parse(bytes.fromhex(text)[:length])


def test_a_login_shows_nothing_of_its_key() -> None:
    assert "secret" not in repr(answered())
