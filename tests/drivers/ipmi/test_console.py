"""Serial over LAN against the simulated BMC: opened, held, taken over, lost, and given back."""

import asyncio
from typing import Any

import pytest

from drivers.console import ConsoleStream
from drivers.ipmi.console import SolStream
from protocol.console_frames import EndReason
from protocol.errors import ErrorCode, OperationError
from simulators.ipmi.accounts import User
from simulators.ipmi.console import Console
from simulators.ipmi.faults import Phase
from simulators.ipmi.sessions import SessionLimits
from tests.drivers.ipmi.conftest import PASSWORD, USER, Site, StartSite

ACTIVATE, DEACTIVATE, INSTANCE_INFO = 0x48, 0x49, 0x4B
APP, TRANSPORT = 0x06, 0x0C


async def opened(site: Site, **arguments: Any) -> ConsoleStream:
    result = await site.invoke("console.openConsole", **arguments)
    stream = site.drivers.environment.consoles.get(str(result["stream"]))
    assert isinstance(stream, SolStream)
    return stream


async def heard(stream: ConsoleStream, expected: bytes) -> None:
    """Reads until just this has come."""
    read = b""
    while len(read) < len(expected):
        data = await stream.read()
        assert data, (read, stream.ending)
        read += data
    assert read == expected


async def end_of(stream: ConsoleStream) -> EndReason:
    while await stream.read():
        pass
    assert stream.ending is not None
    return stream.ending.reason


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent BMC is asked at once."""
    monkeypatch.setattr("drivers.ipmi.console._KEEPALIVE_SECONDS", 0.05)
    monkeypatch.setattr("drivers.ipmi.console._MISSED", 1)


async def test_what_is_typed_reaches_the_machine_and_what_it_writes_is_read(site: Site) -> None:
    stream = await opened(site)
    await stream.write(b"uname\r")
    await heard(stream, b"uname\r\n")
    site.bmc.console.write(b"Linux\r\n")
    await heard(stream, b"Linux\r\n")
    assert bytes(site.bmc.console.received) == b"uname\r"


async def test_a_long_paste_arrives_whole_and_in_order(site: Site) -> None:
    stream = await opened(site)
    pasted = bytes(range(256)) * 20
    typing = asyncio.create_task(stream.write(pasted))
    await heard(stream, pasted.replace(b"\r", b"\r\n"))
    await typing


async def test_a_break_reaches_the_machine(site: Site) -> None:
    stream = await opened(site)
    await stream.write(b"a")
    await stream.send_break()
    await stream.write(b"b")
    await heard(stream, b"ab")
    assert site.bmc.console.breaks == 1


async def test_a_flood_of_breaks_waits_for_the_machine(site: Site) -> None:
    stream = await opened(site)
    assert isinstance(stream, SolStream)
    flood = asyncio.create_task(breaks(stream, 5_000))
    await asyncio.sleep(0)

    assert not flood.done()
    assert 0 < stream._link.pending <= 1_025

    flood.cancel()


async def breaks(stream: ConsoleStream, count: int) -> None:
    for _ in range(count):
        await stream.send_break()


async def test_the_console_has_a_session_and_a_socket_of_its_own(site: Site) -> None:
    stream = await opened(site)
    await site.invoke("power.getPower")
    await stream.write(b"x")
    await heard(stream, b"x")
    sessions = {entry.session_id: entry.peer for entry in site.bmc.journal if entry.session_id}
    assert len(sessions) == len(set(sessions.values())) == 2


async def test_reading_may_be_given_up_without_loss(site: Site) -> None:
    stream = await opened(site)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stream.read()
    site.bmc.console.write(b"still here")
    await heard(stream, b"still here")


async def test_closing_gives_the_console_and_the_session_back(site: Site) -> None:
    result = await site.invoke("console.openConsole")
    stream = site.drivers.environment.consoles.get(str(result["stream"]))
    assert stream is not None
    assert (await site.invoke("console.closeConsole", stream=result["stream"]))["closed"] is True
    assert (await site.invoke("console.closeConsole", stream=result["stream"]))["closed"] is False
    assert site.bmc.sol is None
    assert len(site.asked(APP, DEACTIVATE)) == 1
    assert not list(site.bmc.sessions)
    assert await end_of(stream) is EndReason.CLOSED
    with pytest.raises(OperationError, match="the console is over") as caught:
        await stream.write(b"x")
    assert caught.value.code is ErrorCode.INTERRUPTED


async def test_consoles_left_open_are_closed_with_the_process_connections(site: Site) -> None:
    await opened(site)
    await site.drivers.aclose()
    assert site.bmc.sol is None
    assert not list(site.bmc.sessions)


async def test_get_console_tells_whether_sol_is_switched_on(site: Site) -> None:
    assert (await site.invoke("console.getConsole"))["kinds"] == ["sol"]
    site.bmc.sol_settings.write(1, b"\x00")
    assert (await site.invoke("console.getConsole"))["kinds"] == []


async def test_a_bmc_that_does_not_tell_its_sol_settings_may_have_a_console(site: Site) -> None:
    site.fault(netfn=TRANSPORT, cmd=0x22, completion_code=0xC1)
    assert (await site.invoke("console.getConsole"))["kinds"] == ["sol"]


async def test_another_kind_of_console_is_refused_with_what_to_do(site: Site) -> None:
    error = await site.refused("console.openConsole", kind="ssh")
    assert error.code is ErrorCode.UNSUPPORTED
    assert "ssh driver" in error.message


@pytest.mark.case("B46")
async def test_b46_a_console_held_elsewhere_is_a_conflict_unless_it_may_be_taken_over(site: Site) -> None:
    first = await opened(site)
    error = await site.refused("console.openConsole")
    assert error.code is ErrorCode.CONFLICT
    assert "take it over" in error.message
    second = await opened(site, takeOver=True)
    assert await end_of(first) is EndReason.ENDED
    await second.write(b"mine")
    await heard(second, b"mine")
    assert len(site.asked(APP, DEACTIVATE)) == 1


@pytest.mark.case("B46")
async def test_b46_a_console_that_a_living_client_holds_on_to_is_taken_over_once_only(site: Site) -> None:
    site.fault(netfn=APP, cmd=ACTIVATE, completion_code=0x80)
    error = await site.refused("console.openConsole", takeOver=True)
    assert error.code is ErrorCode.CONFLICT
    assert len(site.asked(APP, ACTIVATE)) == 2
    assert len(site.asked(APP, DEACTIVATE)) == 1
    assert not list(site.bmc.sessions)


@pytest.mark.case("B46")
async def test_b46_a_console_that_is_switched_off_says_so(site: Site) -> None:
    site.fault(netfn=APP, cmd=ACTIVATE, completion_code=0x81)
    error = await site.refused("console.openConsole", takeOver=True)
    assert error.code is ErrorCode.UNSUPPORTED
    assert "enable it" in error.message
    assert not site.asked(APP, DEACTIVATE)


@pytest.mark.case("B46")
@pytest.mark.parametrize("told", [0x0001, 0xFF00, 0xFFFF, 0, 4, 0x0104])
async def test_b46_odd_packet_sizes_carry_a_paste_all_the_same(site: Site, told: int) -> None:
    site.fault(netfn=APP, cmd=ACTIVATE, odd_size=told)
    stream = await opened(site)
    await stream.write(b"0123456789" * 60)
    await heard(stream, b"0123456789" * 60)


@pytest.mark.case("B46")
async def test_b46_a_session_that_a_killed_client_left_is_taken_over(site: Site) -> None:
    stale = await opened(site)
    assert isinstance(stale, SolStream)
    stale._line.forget_session()
    fresh = await opened(site, takeOver=True)
    await fresh.write(b"x")
    await heard(fresh, b"x")


@pytest.mark.case("B46")
async def test_b46_a_bmc_without_a_free_session_is_waited_for(start_site: StartSite, hasty: None) -> None:
    site = await start_site()
    site.fault(Phase.OPEN_SESSION, status=0x01, count=2)
    stream = await opened(site)
    await stream.write(b"x")
    await heard(stream, b"x")


@pytest.mark.case("B46")
async def test_b46_a_bmc_that_never_has_a_free_session_is_busy(start_site: StartSite, hasty: None) -> None:
    site = await start_site(limits=SessionLimits(maximum=0))
    assert (await site.refused("console.openConsole")).code is ErrorCode.BUSY


@pytest.mark.case("B46")
async def test_b46_a_bmc_that_restarted_is_seen_by_its_silence(site: Site, watchful: None) -> None:
    stream = await opened(site)
    site.bmc.restart(silent_seconds=0)
    assert await end_of(stream) is EndReason.LOST
    assert stream.ending is not None
    assert "may have restarted" in stream.ending.message
    again = await opened(site)
    await again.write(b"x")
    await heard(again, b"x")


@pytest.mark.case("B46")
async def test_b46_a_console_that_ends_with_the_power_says_so(site: Site) -> None:
    site.bmc.sol_ends_with_power = True
    stream = await opened(site)
    site.bmc.console.write(b"Power down.\r\n")
    await site.invoke("power.setPower", action="off")
    assert await stream.read() == b"Power down.\r\n"
    assert await end_of(stream) is EndReason.ENDED


async def test_a_console_that_was_taken_without_a_word_is_noticed(site: Site, watchful: None) -> None:
    stream = await opened(site)
    site.bmc.sol = None
    assert await end_of(stream) is EndReason.ENDED
    assert stream.ending is not None
    assert "nobody has it now" in stream.ending.message


async def test_a_bmc_that_does_not_tell_the_holder_keeps_its_console(site: Site, watchful: None) -> None:
    site.fault(netfn=APP, cmd=INSTANCE_INFO, completion_code=0xC1)
    stream = await opened(site)
    await site.server.seen(lambda entry: entry.cmd == INSTANCE_INFO and len(site.asked(APP, INSTANCE_INFO)) > 3)
    await stream.write(b"x")
    await heard(stream, b"x")


async def test_an_activation_whose_answer_is_lost_is_found_to_be_ones_own(site: Site, hasty: None) -> None:
    site.fault(netfn=APP, cmd=ACTIVATE, drop_answer=True, count=1)
    stream = await opened(site)
    await stream.write(b"x")
    await heard(stream, b"x")
    assert len(site.asked(APP, DEACTIVATE)) == 1


async def test_an_activation_whose_answer_is_lost_takes_nothing_from_another(site: Site, hasty: None) -> None:
    first = await opened(site)
    site.fault(netfn=APP, cmd=ACTIVATE, drop=True, count=1)
    assert (await site.refused("console.openConsole")).code is ErrorCode.CONFLICT
    await first.write(b"x")
    await heard(first, b"x")


async def test_lost_packets_are_repeated_and_typed_once(site: Site) -> None:
    stream = await opened(site)
    site.fault(Phase.SOL, drop=True, count=1)
    await stream.write(b"ls\r")
    site.fault(Phase.SOL, drop_answer=True, count=1)
    await heard(stream, b"ls\r\n")
    assert bytes(site.bmc.console.received) == b"ls\r"


async def test_a_machine_that_takes_nothing_for_a_while_gets_it_later(site: Site) -> None:
    site.fault(Phase.SOL, nack=True, count=2)
    stream = await opened(site)
    await stream.write(b"ls\r")
    await heard(stream, b"ls\r\n")
    assert bytes(site.bmc.console.received) == b"ls\r"


async def test_a_reader_that_sleeps_is_not_flooded_and_loses_nothing(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivers.ipmi.console._MOST_UNREAD", 1_000)
    site = await start_site(console=Console(lambda text: b""))
    stream = await opened(site)
    written = bytes(range(200)) * 20
    site.bmc.console.write(written)
    await site.server.seen(lambda entry: entry.phase is Phase.SOL)
    await heard(stream, written)


async def test_a_console_on_a_port_of_its_own_is_refused_with_what_to_set(site: Site) -> None:
    site.bmc.port = 4711
    error = await site.refused("console.openConsole")
    assert error.code is ErrorCode.UNSUPPORTED
    assert "another UDP port (4711): set its SOL payload port to 623" in error.message
    assert "ipmi://127.0.0.1:4711" in error.message
    assert not list(site.bmc.sessions)


@pytest.mark.parametrize("told", [None, 623], ids=["its own", "the usual one, behind a forwarded one"])
async def test_the_console_is_opened_at_the_port_of_the_bmcs_address(site: Site, told: int | None) -> None:
    if told is not None:
        site.bmc.port = told
    assert site.target.address == f"ipmi://127.0.0.1:{site.server.port}"
    assert site.server.port != 623
    stream = await opened(site)
    await stream.write(b"x")
    await heard(stream, b"x")


async def test_garbage_between_the_packets_is_ignored(site: Site) -> None:
    stream = await opened(site)
    assert isinstance(stream, SolStream)
    for payload in (b"", b"\x01", b"\x00\x00\x00"):
        stream._receive(payload)
    await stream.write(b"x")
    await heard(stream, b"x")


async def test_a_user_without_the_right_to_sol_is_told(start_site: StartSite) -> None:
    site = await start_site(users=[User(USER, PASSWORD.encode(), sol=False)])
    error = await site.refused("console.openConsole")
    assert error.code is ErrorCode.UNSUPPORTED


async def test_opening_does_not_wait_for_a_long_change(site: Site) -> None:
    async with site.drivers.turn(site.target, "power.setPower", {"action": "on"}):
        stream = await opened(site)
        await stream.write(b"x")
        await heard(stream, b"x")
