"""Commands a second from API call to result, on simulated machines, against the disk's group-commit floor.

The floor is an insert and an update per command through nothing but sqlite3 with `synchronous=FULL`, as many to a
commit as there are callers here: what any engine that stores a command and its ending could do at best.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path

from benchmarks import Figure
from benchmarks.floors import group_commit_floor
from tests.e2e.processes import AgentProcess, ControlPlaneProcess

MACHINES = 64
CALLERS = 64
SECONDS = 8.0


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        floor = group_commit_floor(folder / "floor.db", CALLERS)
        plane = ControlPlaneProcess(folder, log_level="warning")
        with plane.running_for():
            agent = AgentProcess(folder, log_level="warning")
            agent.join(plane)
            with agent.running_for():
                for number in range(MACHINES):
                    record = {"address": f"simulated://m{number}"}
                    plane.call("nodes.create", tenantId="default", name=f"m{number}", siteId="lab", bmc=record)
                reads = asyncio.run(_rate(plane, "power.getPower", {}))
                resets = asyncio.run(_rate(plane, "power.setPower", {"action": "reset"}))
    peer = "the disk's group-commit floor"
    note = f"{CALLERS} callers on {MACHINES} machines"
    return [
        Figure("commands.per_second", resets, "commands/s", peer, floor, resets / floor, f"power resets, {note}"),
        Figure("commands.per_second.reads", reads, "commands/s", peer, floor, reads / floor, f"power reads, {note}"),
    ]


async def _rate(plane: ControlPlaneProcess, operation: str, arguments: dict[str, object]) -> float:
    """Commands ended per second, each caller waiting for its own before it asks for the next."""
    done = 0
    end = 0.0

    async def caller(number: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", plane.api_port)
        node = f"m{number % MACHINES}"
        request = {"tenantId": "default", "nodeId": node, "operation": operation, "args": arguments}
        body = json.dumps(request).encode()
        head = (
            "POST /api/compute/drivers/invoke HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {plane.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        while time.perf_counter() < end:
            writer.write(head + body)
            answer = await _answer(reader)
            if answer.get("state") != "succeeded":
                raise RuntimeError(f"a command failed: {answer}")
            done += 1
        writer.close()

    end = time.perf_counter() + 1.0
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    done, end = 0, time.perf_counter() + SECONDS
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return done / SECONDS


async def _answer(reader: asyncio.StreamReader) -> dict[str, object]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    answer: dict[str, object] = json.loads(await reader.readexactly(length))
    return answer
