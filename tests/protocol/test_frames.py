"""Frames: exact after a journey, tolerant of newer peers, and calm about hostile bytes."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.commands import Ending, JournalState, Outcome, TargetRef
from protocol.errors import Failure, ProtocolError
from protocol.frames import (
    PROTOCOL_MINOR,
    Accepted,
    AgentFrame,
    Cancel,
    CertificateIssued,
    CertificateRequest,
    Command,
    ControlFrame,
    ErrorFrame,
    Finished,
    Goodbye,
    Held,
    Hello,
    Joined,
    JoinRefused,
    JoinRequest,
    NodeState,
    Observation,
    Progress,
    Settled,
    Started,
    Ticket,
    TicketRequest,
    WatchedNode,
    WatchList,
    Welcome,
    decode_agent_frame,
    decode_control_frame,
    decode_join_answer,
    encode,
)
from protocol.machine_facts import MachineFacts

FROM_AGENT: list[AgentFrame] = [
    Hello(
        agent_id="agent_1",
        role="site",
        boot_id="b",
        journal_id="jrn_1",
        version="0.1.0",
        drivers={"redfish": ["power.getPower"]},
        held=[Held("cmd_1", JournalState.STARTED)],
    ),
    Accepted(id="cmd_1"),
    Started(id="cmd_1"),
    Progress(id="cmd_1", message="writing", percent=12.5),
    Finished(id="cmd_1", ending=Ending(Outcome.SUCCEEDED, {"state": "on"})),
    Finished(id="cmd_1", ending=Ending(Outcome.FAILED, error=Failure("BUSY", "not now", True))),
    TicketRequest(id="1", node_id="node_1", holds="jtk_1"),
    TicketRequest(id="3", purpose="image", checksum="ab" * 32),
    TicketRequest(id="2", machine=MachineFacts(macs=["b8:2a:72:dd:a0:01"]), among=["node_1"]),
    Observation(
        nodes=[NodeState(node_id="node_1", power="on", health="ok", raw="On", age_ms=7), NodeState(node_id="n")]
    ),
    CertificateRequest(csr="pem"),
    ErrorFrame(message="what?", about="steam"),
]
FROM_CONTROL_PLANE: list[ControlFrame] = [
    Ticket(id="1", node_id="node_1", ticket="{}"),
    Ticket(id="2", refusal="not a machine of this site"),
    Welcome(session_id="ses_1", settled=["cmd_1"]),
    Command(id="cmd_1", kind="driver.invoke", payload={"args": {"deep": [1, None]}}, remaining_ms=1000),
    Cancel(id="cmd_1", reason="an operator said so"),
    Settled(ids=["cmd_1", "cmd_2"]),
    WatchList(
        version="v",
        nodes=[WatchedNode(node_id="node_1", driver="redfish", target=TargetRef("https://b", "r"))],
        more=True,
    ),
    CertificateIssued(certificate="pem", ca="pem"),
    Goodbye(reason="revoked"),
    ErrorFrame(message="what?"),
]


def kind_of(frame: object) -> str:
    return type(frame).__name__


@pytest.mark.parametrize("frame", FROM_AGENT, ids=kind_of)
def test_a_frame_of_an_agent_is_the_same_after_its_journey(frame: AgentFrame) -> None:
    assert decode_agent_frame(encode(frame)) == frame
    assert decode_agent_frame(encode(frame).decode()) == frame


@pytest.mark.parametrize("frame", FROM_CONTROL_PLANE, ids=kind_of)
def test_a_frame_of_the_control_plane_is_the_same_after_its_journey(frame: ControlFrame) -> None:
    assert decode_control_frame(encode(frame)) == frame


@pytest.mark.parametrize(
    "frame", [Joined(agent_id="a", role="site", site="s", certificate="c", ca="c"), JoinRefused(message="used")]
)
def test_an_answer_to_joining_is_the_same_after_its_journey(frame: Joined | JoinRefused) -> None:
    assert decode_join_answer(encode(frame)) == frame


@pytest.mark.parametrize("frame", FROM_AGENT, ids=kind_of)
def test_fields_of_a_newer_peer_are_ignored(frame: AgentFrame) -> None:
    newer = json.loads(encode(frame)) | {"mood": {"good": True}}
    assert decode_agent_frame(json.dumps(newer)) == frame


def test_a_ticket_shows_no_token() -> None:
    assert "rwj1" not in repr(Ticket(id="1", ticket='{"token":"rwj1.x"}'))


def test_names_on_the_wire_are_camel_case_and_absent_when_default() -> None:
    wire = json.loads(encode(Hello(agent_id="a", role="site", boot_id="b", journal_id="j", version="v")))
    assert wire == {"type": "hello", "agentId": "a", "role": "site", "bootId": "b", "journalId": "j", "version": "v"}


@pytest.mark.parametrize("decode", [decode_agent_frame, decode_control_frame, decode_join_answer])
def test_a_frame_of_an_unknown_type_is_named(decode: object) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode('{"type": "steam", "id": "cmd_1"}')  # type: ignore[operator]
    assert caught.value.message == "this version knows no frame of type 'steam'"
    assert caught.value.about == "cmd_1"
    assert not caught.value.fatal


def test_a_frame_of_the_other_side_is_unknown_here() -> None:
    with pytest.raises(ProtocolError, match="no frame of type 'welcome'"):
        decode_agent_frame(encode(Welcome(session_id="ses_1")))


@pytest.mark.parametrize(
    ("text", "reason", "about"),
    [
        ('{"type": "accepted"}', "the accepted frame cannot be read", "accepted"),
        ('{"type": "accepted", "id": 7}', "not JSON of the expected shape", ""),
        ('{"type": "finished", "id": "cmd_1", "ending": {"outcome": "exploded"}}', "the finished frame", "cmd_1"),
        ('{"id": "cmd_1"}', "the untyped frame cannot be read", "cmd_1"),
        ("[]", "not JSON of the expected shape", ""),
        ("", "not JSON", ""),
    ],
)
def test_a_broken_frame_says_what_is_wrong_and_about_what(text: str, reason: str, about: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as caught:
        decode_agent_frame(text)
    assert caught.value.about == about


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_hostile_bytes_are_a_protocol_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_agent_frame, decode_control_frame, decode_join_answer):
        with pytest.raises(ProtocolError):
            decode(data)


@given(st.sampled_from(FROM_AGENT), st.data())
def test_a_cut_or_altered_frame_is_read_or_refused(frame: AgentFrame, data: st.DataObject) -> None:
    whole = bytearray(encode(frame))
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[place:]
    else:
        whole[place] = data.draw(st.integers(0, 255))
    try:
        read = decode_agent_frame(bytes(whole))
    except ProtocolError:
        return
    assert isinstance(read, msgspec.Struct)


def test_deeply_nested_bytes_are_refused() -> None:
    deep = (
        b'{"type":"command","id":"c","kind":"k","remainingMs":1,"payload":'
        + b'{"a":' * 100_000
        + b"1"
        + b"}" * 100_001
    )
    with pytest.raises(ProtocolError):
        decode_control_frame(deep)


def test_the_secret_of_a_join_request_is_not_shown() -> None:
    assert "hunter2" not in repr(JoinRequest(token_id="t", secret="hunter2", csr="pem"))


def test_the_minor_version_that_a_side_speaks_is_really_on_the_wire() -> None:
    hello = Hello(agent_id="a", role="site", boot_id="b", journal_id="j", version="0", protocol=PROTOCOL_MINOR)
    silent = Hello(agent_id="a", role="site", boot_id="b", journal_id="j", version="0")

    assert json.loads(encode(hello))["protocol"] == PROTOCOL_MINOR
    assert json.loads(encode(Welcome(session_id="s", protocol=PROTOCOL_MINOR)))["protocol"] == PROTOCOL_MINOR
    decoded = decode_agent_frame(encode(silent))
    assert isinstance(decoded, Hello)
    assert decoded.protocol == 0
