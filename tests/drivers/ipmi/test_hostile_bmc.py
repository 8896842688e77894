"""A BMC that loses, repeats, cuts and contradicts: orders are given once, causes are kept, sessions are left behind
nowhere."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from drivers import Drivers, Target
from drivers.driver import Call
from drivers.ipmi.commands import GET_SEL_ENTRY, GET_SEL_INFO, RESERVE_SDR_REPOSITORY, Command
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.packets import Message
from drivers.ipmi.repository import _REPOSITORY, _Walk
from drivers.ipmi.sel import read_newest
from protocol.errors import ErrorCode, OperationError
from tests.drivers.ipmi.conftest import PASSWORD, USER, Site, StartSite

CONTROL = (0x00, 0x02)
CLOSE = (0x06, 0x3C)

LOSSES: list[dict[str, Any]] = [
    {"drop": True},
    {"drop_answer": True},
    {"late": 0.2},
    {"delay": 0.2},
    {"late": 2.0},
    {"duplicate": 5},
    {"wrong_sequence": True},
    {"replay_sequence": True},
    {"truncate": 7},
    {"garbage": "06"},
    {"garbage": "0600ff0706c00000000000000000ffff"},
]


@pytest.mark.case("B44", "B46")
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("action", ["reset", "cycle", "nmi"])
async def test_an_act_is_sent_once_whatever_becomes_of_its_answer(
    site: Site, hasty: None, loss: dict[str, Any], action: str
) -> None:
    site.fault(netfn=0, cmd=2, **loss)
    ended: ErrorCode | None = None
    try:
        await site.invoke("power.setPower", action=action)
    except OperationError as error:
        ended = error.code
    assert ended in (None, ErrorCode.OUTCOME_UNKNOWN)
    assert len(site.asked(*CONTROL)) == 1


@pytest.mark.parametrize("action", ["off", "softOff"])
async def test_an_order_that_was_refused_is_not_reported_as_under_way(site: Site, hasty: None, action: str) -> None:
    site.fault(netfn=0, cmd=2, completion_code=0xD5)
    error = await site.refused("power.setPower", action=action, wait=False)
    assert error.code is ErrorCode.CONFLICT
    assert [said.id for said in error.bmc] == ["0xd5"]


@pytest.mark.parametrize("code", [0xD5, 0xC3, 0xCE])
async def test_a_machine_that_stays_on_is_reported_with_the_bmc_s_words(site: Site, hasty: None, code: int) -> None:
    site.fault(netfn=0, cmd=2, completion_code=code)
    error = await site.refused("power.setPower", timeout=3.0, action="off")
    assert error.code is ErrorCode.NOT_APPLIED
    assert [said.id for said in error.bmc] == [f"{code:#04x}"]
    assert len(site.asked(*CONTROL)) == 2


@pytest.mark.parametrize("code", [0xC0, 0xD2])
async def test_an_order_for_a_state_waits_until_the_bmc_is_free(site: Site, hasty: None, code: int) -> None:
    site.fault(netfn=0, cmd=2, completion_code=code, count=2)
    assert (await site.invoke("power.setPower", action="off"))["state"] == "off"
    assert [entry.executed for entry in site.asked(*CONTROL)] == [False, False, True]


async def test_a_cycle_that_ends_with_the_machine_off_says_that_it_is_off(site: Site, hasty: None) -> None:
    site.fault(netfn=0, cmd=2, data="02", completion_code=0xC1)
    site.fault(netfn=0, cmd=2, data="01", completion_code=0xD4)
    error = await site.refused("power.setPower", action="cycle")
    assert error.code is ErrorCode.NOT_APPLIED
    assert "switched off for its power cycle" in error.message
    assert [said.id for said in error.bmc] == ["0xd4"]


@pytest.mark.parametrize("fault", [{"drop": True}, {"drop_answer": True}, {"garbage": "ff"}], ids=str)
async def test_half_a_login_keeps_no_session_at_the_bmc(site: Site, hasty: None, fault: dict[str, Any]) -> None:
    """Many BMCs have four sessions and a minute's patience: a poller would shut itself out."""
    site.fault(netfn=6, cmd=0x3B, **fault)
    for number in range(1, 7):
        assert (await site.refused("power.getPower")).code is ErrorCode.UNREACHABLE
        while len(site.asked(*CLOSE)) < number:
            await asyncio.sleep(0.01)
    assert len(site.asked(*CLOSE)) == 6


async def test_a_login_that_is_cancelled_after_the_password_keeps_no_session_either(site: Site) -> None:
    site.fault(netfn=6, cmd=0x3B, late=5.0, count=1)
    asking = asyncio.create_task(site.invoke("power.getPower"))
    while not site.asked(6, 0x3B):
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait({asking})
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert len(site.asked(*CLOSE)) == 1


@pytest.mark.parametrize("operation", ["power.getPower", "management.getSensors", "management.getEventLog"])
async def test_an_operation_that_is_cancelled_anywhere_leaves_the_bmc_usable(site: Site, operation: str) -> None:
    for pause in (0.0, 0.002, 0.005, 0.01, 0.02):
        asking = asyncio.create_task(site.invoke(operation))
        await asyncio.sleep(pause)
        asking.cancel()
        await asyncio.wait({asking})
    assert (await site.invoke("power.getPower"))["state"] == "on"


class _Scripted:
    """A connection that answers commands from a table."""

    endpoint = "192.0.2.1:623"

    def __init__(self, answers: dict[tuple[int, bytes], bytes]) -> None:
        self.answers = answers
        self.asked = 0

    async def ask(self, command: Command, _call: Call) -> Message:
        self.asked += 1
        data = self.answers.get((command.number, command.data[2:4]), self.answers.get((command.number, b"")))
        return Message(command.netfn | 1, command.number, 0, 0xCB if data is None else 0, data or b"")

    async def run(self, command: Command, call: Call) -> bytes:
        return (await self.ask(command, call)).data


def _call() -> Call:
    return Call("management.getSensors", asyncio.get_running_loop().time() + 60)


def sdr(identifier: int) -> bytes:
    return struct.pack("<HBBB", identifier, 0x51, 0x02, 32 - 5) + bytes(26) + b"\xc0"


@pytest.mark.parametrize("leads_to", [0, 1, 2])
async def test_sensor_records_that_run_in_a_circle_are_read_once_each(leads_to: int) -> None:
    chain = {0: 1, 1: 2, 2: leads_to}
    answers = {
        (0x23, struct.pack("<H", here)): struct.pack("<H", following) + sdr(here) for here, following in chain.items()
    }
    bmc = _Scripted({(RESERVE_SDR_REPOSITORY.number, b""): b"\1\0", **answers})
    records = await _Walk(cast(IpmiConnection, bmc), _REPOSITORY, _call()).run()
    assert len(records) == 3
    assert bmc.asked < 20


def sel(identifier: int, length: int = 16) -> bytes:
    return (struct.pack("<HBI", identifier, 0x02, 0x60000000) + bytes((0x20, 0, 4, 1, 1, 1, 0, 0, 0)))[:length]


@pytest.mark.parametrize("leads_to", [1, 2, 3])
async def test_an_event_log_that_runs_in_a_circle_is_read_once_each(leads_to: int) -> None:
    info = bytes((0x51, 3, 0)) + bytes(11)
    chain = {0: (1, 2), 2: (2, 3), 3: (3, leads_to)}
    answers = {
        (GET_SEL_ENTRY.number, struct.pack("<H", asked)): struct.pack("<H", following) + sel(own)
        for asked, (own, following) in chain.items()
    }
    bmc = _Scripted({(GET_SEL_INFO.number, b""): info, **answers})
    entries = await read_newest(cast(IpmiConnection, bmc), 100, _call())
    assert 3 <= len(entries) <= 4
    assert bmc.asked < 20


@pytest.mark.parametrize("length", [0, 1, 7, 15])
async def test_a_log_record_that_is_cut_short_hides_no_other(length: int) -> None:
    info = bytes((0x51, 2, 0)) + bytes(11)
    first = struct.pack("<H", 2) + sel(1, length)
    second = struct.pack("<H", 0xFFFF) + sel(2)
    number = GET_SEL_ENTRY.number
    bmc = _Scripted({(GET_SEL_INFO.number, b""): info, (number, b"\0\0"): first, (number, b"\2\0"): second})
    newest, cut = await read_newest(cast(IpmiConnection, bmc), 100, _call())
    assert newest.id == "0x0002"
    assert "cut short" in cut.text


class _Meddler(asyncio.DatagramProtocol):
    """Between the client and a BMC: cuts the proof off every RAKP 2."""

    def __init__(self, bmc_port: int) -> None:
        self.bmc_port = bmc_port
        self.client: tuple[str, int] | None = None
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        assert self.transport is not None
        if address[1] != self.bmc_port:
            self.client = address
            self.transport.sendto(data, ("127.0.0.1", self.bmc_port))
            return
        if len(data) > 16 and data[4] == 0x06 and data[5] & 0x3F == 0x13:
            data = data[:14] + struct.pack("<H", 40) + data[16:56]
        self.transport.sendto(data, self.client)


@contextlib.asynccontextmanager
async def meddling_with(site: Site) -> AsyncIterator[Target]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Meddler(site.server.port), local_addr=("127.0.0.1", 0)
    )
    try:
        port = transport.get_extra_info("sockname")[1]
        yield Target(address=f"ipmi://127.0.0.1:{port}", username=USER, password=PASSWORD)
    finally:
        transport.close()


@pytest.mark.case("B44")
async def test_a_login_answer_without_a_proof_blocks_no_password(start_site: StartSite, hasty: None) -> None:
    site = await start_site()
    async with meddling_with(site) as target, Drivers() as drivers:
        for _ in range(2):
            with pytest.raises(OperationError, match="0 bytes of proof") as caught:
                await drivers.invoke(target, "power.getPower")
            assert caught.value.code is ErrorCode.BMC_ERROR
        assert drivers.environment.breaker.blocked == {}
