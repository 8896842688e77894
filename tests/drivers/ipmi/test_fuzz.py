"""Answers with broken data: each reading ends in a result or a typed error, after a bounded number of commands.

`RACKWRIGHT_FUZZ` multiplies the number of runs.
"""

import asyncio
import dataclasses
import json
import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import Drivers, Target, operations_of
from drivers.driver import Call
from drivers.ipmi import DRIVER
from drivers.ipmi.commands import Command
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.packets import Message
from protocol.errors import OperationError
from protocol.operations import OPERATIONS
from simulators.ipmi.accounts import User
from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.server import IpmiServer
from tests.drivers.ends import ended
from tests.drivers.ipmi.conftest import PASSWORD, USER

RUNS = int(os.environ.get("RACKWRIGHT_FUZZ", "1"))
READS = [operation for operation in operations_of(DRIVER) if not OPERATIONS[operation].changes]
MOST_COMMANDS = 3000
LARGEST_RESULT = 500_000
CODES = (0x00, 0x80, 0xC1, 0xC7, 0xC9, 0xCB, 0xCC, 0xD4, 0xFF)

Spoil = Callable[[random.Random, bytes], bytes]
SPOILS: list[Spoil] = [
    lambda chance, data: b"",
    lambda chance, data: data[: chance.randrange(len(data) + 1)],
    lambda chance, data: data + chance.randbytes(chance.randrange(1, 60)),
    lambda chance, data: chance.randbytes(len(data)),
    lambda chance, data: bytes(len(data)),
    lambda chance, data: b"\xff" * len(data),
    lambda chance, data: bytes(byte ^ (1 << chance.randrange(8)) * (chance.random() < 0.2) for byte in data),
    lambda chance, data: data[:2] + chance.randbytes(max(0, len(data) - 2)),
]


def spoiled(chance: random.Random, message: Message, share: float) -> Message:
    if chance.random() >= share:
        return message
    if chance.random() < 0.1:
        return dataclasses.replace(message, completion_code=chance.choice(CODES))
    return dataclasses.replace(message, data=chance.choice(SPOILS)(chance, message.data))


async def read_from_a_liar(operation: str, chance: random.Random, share: float) -> None:
    asked = 0
    async with IpmiServer(IpmiBmc(users=[User(USER, PASSWORD.encode())])) as server, Drivers() as drivers:
        target = Target(address=f"ipmi://127.0.0.1:{server.port}", username=USER, password=PASSWORD)
        honest = IpmiConnection.ask

        async def ask(self: IpmiConnection, command: Command, call: Call) -> Message:
            nonlocal asked
            asked += 1
            assert asked <= MOST_COMMANDS
            return spoiled(chance, await honest(self, command, call), share)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(IpmiConnection, "ask", ask)
            end = await ended(drivers.invoke(target, operation, timeout=60))
        if isinstance(end, OperationError):
            assert "failed in the driver" not in end.message
            assert len(str(end)) < 20_000
        else:
            assert len(json.dumps(end, ensure_ascii=False).encode()) < LARGEST_RESULT


@pytest.mark.timeout(300)
@pytest.mark.parametrize("operation", READS)
def test_a_reading_of_broken_data_ends_in_a_result_or_a_typed_error(operation: str) -> None:
    @settings(
        max_examples=25 * RUNS,
        deadline=None,
        database=None,
        derandomize=RUNS == 1,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32), st.sampled_from([0.02, 0.2, 0.7]))
    def broken(seed: int, share: float) -> None:
        asyncio.run(read_from_a_liar(operation, random.Random(seed), share))

    broken()
