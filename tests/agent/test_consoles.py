"""The agent's consoles: one per machine, whoever asks; frames to the right one; over links that come and go."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.bmcs import BmcMemory, Bmcs
from agent.config import ConsolesSection
from agent.console_log import ConsoleLogs
from agent.consoles import Consoles
from agent.vault import Vault, VaultKey
from drivers import Target, simulated
from protocol.console_frames import ConsoleFrame, EndReason, FrameKind, decode_console_frame
from protocol.errors import ErrorCode, OperationError, ProtocolError
from protocol.ids import new_id
from tests.agent.rig import until


class Agent:
    """What an agent has for consoles, and the control plane's end of its link."""

    def __init__(self, folder: Path, settings: ConsolesSection) -> None:
        vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
        self.bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
        self.logs = ConsoleLogs(folder / "consoles", 100_000, 2)
        self.consoles = Consoles(self.bmcs.drivers, settings, self.logs)
        self.bmcs.keep_consoles(self.consoles)
        self.woken = asyncio.Event()
        self.consoles.wake = self.woken.set
        self.read: dict[str, bytearray] = {}
        self.ended: dict[str, ConsoleFrame] = {}

    async def invoke(self, operation: str, host: str = "m1", **args: object) -> dict[str, object]:
        payload: dict[str, object] = {
            "driver": "simulated",
            "concern": "console",
            "operation": operation,
            "args": args,
            "targetNodeId": f"node_{host}",
            "target": {"address": f"simulated://{host}"},
        }
        async with self.bmcs.turn(payload) as work:
            return (await work.run(10, lambda _message, _percent: None)).result

    async def open(self, host: str = "m1", **args: object) -> str:
        return str((await self.invoke("openConsole", host, **args))["stream"])

    def attach(self, stream: str, offset: int = 0) -> None:
        self.consoles.receive(ConsoleFrame.counting(FrameKind.ATTACH, stream, offset, 65_536).encode())

    def type(self, stream: str, data: bytes) -> None:
        self.consoles.receive(ConsoleFrame(FrameKind.INPUT, stream, 0, data).encode())

    def take(self) -> bool:
        while (message := self.consoles.take()) is not None:
            frame = decode_console_frame(message)
            if frame.kind is FrameKind.DATA:
                self.read.setdefault(frame.stream, bytearray()).extend(frame.data)
            elif frame.kind is FrameKind.ENDED:
                self.ended[frame.stream] = frame
        return True

    async def heard(self, stream: str, expected: bytes) -> None:
        await until(lambda: self.take() and expected in self.read.get(stream, b""))


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    monkeypatch.setattr("drivers.registry.INSTALLED", {"simulated": "drivers.simulated"})
    monkeypatch.setattr("agent.console._DELAYS", (0.001,))
    simulated.clear()
    agent = Agent(tmp_path, ConsolesSection(most=3, linger_seconds=60))
    yield agent
    await agent.consoles.aclose()
    await agent.bmcs.aclose()
    simulated.clear()


async def test_a_machines_console_goes_to_the_control_plane_and_back(agent: Agent) -> None:
    stream = await agent.open()
    agent.attach(stream)
    await agent.heard(stream, b"m1 login: ")
    agent.type(stream, b"root\r")
    await agent.heard(stream, b"root\r\nm1 login: ")
    agent.consoles.receive(ConsoleFrame(FrameKind.BREAK, stream).encode())
    await agent.heard(stream, b"sysrq")


async def test_a_second_asking_gives_the_stream_that_is_open(agent: Agent) -> None:
    first, second = await asyncio.gather(agent.open(), agent.open())
    assert first == second == await agent.open(takeOver=True)
    assert simulated.act_counts("m1") == {"console.openConsole": 1}
    assert await agent.open("m2") != first


async def test_no_more_are_open_than_the_settings_allow(agent: Agent) -> None:
    for number in range(3):
        await agent.open(f"m{number}")
    with pytest.raises(OperationError, match="3 consoles open") as caught:
        await agent.open("m3")
    assert caught.value.code is ErrorCode.BUSY


async def test_closing_gives_it_back_and_the_reader_is_told(agent: Agent) -> None:
    stream = await agent.open()
    agent.attach(stream)
    assert await agent.invoke("closeConsole", stream=stream) == {"stream": stream, "closed": True}
    await until(lambda: agent.take() and stream in agent.ended)
    assert agent.ended[stream].ended.reason is EndReason.CLOSED
    assert simulated.state("m1").console is None
    assert (await agent.invoke("closeConsole", stream=stream))["closed"] is False
    assert await agent.open() != stream


async def test_the_agents_stop_gives_every_console_back(agent: Agent) -> None:
    await agent.open()
    await agent.open("m2")
    await agent.consoles.aclose()
    assert (simulated.state("m1").console, simulated.state("m2").console) == (None, None)


async def test_a_console_that_somebody_else_took_ends(agent: Agent) -> None:
    stream = await agent.open()
    agent.attach(stream)
    await agent.heard(stream, b"login")
    other = Target(address="simulated://m1")
    await agent.bmcs.drivers.invoke(other, "console.openConsole", {"takeOver": True})
    await until(lambda: agent.take() and stream in agent.ended)
    assert agent.ended[stream].ended.code == "CONFLICT"
    assert b"somebody took it over" in agent.read[stream]


async def test_a_cut_link_loses_nothing(agent: Agent) -> None:
    stream = await agent.open()
    agent.attach(stream)
    await agent.heard(stream, b"login: ")
    seen = len(agent.read[stream])
    agent.consoles.detach()
    agent.type(stream, b"nobody is attached")
    agent.attach(stream, seen)
    agent.type(stream, b"x")
    await agent.heard(stream, b"login: x")
    assert b"nobody" not in agent.read[stream]


async def test_an_unknown_stream_is_told_to_be_unknown_and_others_are_left_alone(agent: Agent) -> None:
    stranger = new_id("strm")
    agent.attach(stranger)
    agent.type(stranger, b"x")
    agent.take()
    assert agent.ended[stranger].ended.reason is EndReason.UNKNOWN


async def test_garbage_is_refused_and_harms_nobody(agent: Agent) -> None:
    stream = await agent.open()
    for message in (b"", b"\x00" * 40, b"\x01" * 100):
        with pytest.raises(ProtocolError):
            agent.consoles.receive(message)
    agent.attach(stream)
    await agent.heard(stream, b"login")


async def test_consoles_take_turns(agent: Agent) -> None:
    streams = [await agent.open(f"m{number}") for number in range(3)]
    for stream in streams:
        agent.attach(stream)
    agent.take()
    for stream in streams:
        agent.type(stream, b"y" * 3_000)
    await asyncio.sleep(0.01)
    order = []
    while (message := agent.consoles.take()) is not None:
        order.append(decode_console_frame(message).stream)
    assert set(order[:3]) == set(streams)


async def test_what_machines_write_is_logged_per_machine(agent: Agent) -> None:
    await agent.open()
    await agent.open("m2")
    await agent.consoles.aclose()
    for host in ("m1", "m2"):
        assert f"{host} login: ".encode() in agent.logs.path_of(f"node_{host}").read_bytes()
