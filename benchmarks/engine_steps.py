"""Durable steps a second: 1,000 workflows of 10 no-op control-plane steps in one worker process, against DBOS.

Both write each step before and after it, durably: SQLite with synchronous=FULL, PostgreSQL with its defaults. DBOS is
run with one caller and with eight, and held at its better figure.
"""

import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Figure, engine_worker
from benchmarks.children import child
from benchmarks.floors import group_commit_floor
from tests.postgres import NoPostgres, private_server

WORKFLOWS = 1_000
RUNS = 3
PEER_WORKFLOWS = 300
PEER = "DBOS"
_PEER_PYTHON = Path(".peers/bin/python")


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = _ours(f"sqlite://{folder}/engine.db")
        theirs = _dbos(f"sqlite:///{folder}/dbos.db")
        floor = group_commit_floor(folder / "floor.db", 64)
        note = f"{ours / floor:.3f} of the disk's group-commit floor ({floor:.0f} transactions/s, 64 to a commit)"
        yield Figure("engine.steps.sqlite", ours, "steps/s", PEER, theirs, ours / theirs, note)
    try:
        with private_server(durable=True) as server:
            ours = _ours(server.create("engine"))
            theirs = _dbos(server.create("dbos").replace("postgresql://", "postgresql+psycopg://"))
            yield Figure("engine.steps.postgres", ours, "steps/s", PEER, theirs, ours / theirs)
    except NoPostgres as reason:
        raise RuntimeError(f"engine.steps.postgres: {reason}") from None


def _ours(url: str) -> float:
    """Median steps/s."""
    with child(engine_worker.serve, url) as worker:
        worker.receive()
        rates: list[float] = []
        for number in range(RUNS + 1):
            worker.pipe.send(("drive", WORKFLOWS))
            wall: float = worker.receive(300)[0]
            if number:
                rates.append(WORKFLOWS * engine_worker.STEPS / wall)
        worker.pipe.send("stop")
        worker.receive()
    return statistics.median(rates)


def _dbos(url: str) -> float:
    """Steps/s of the better of one caller and eight."""
    rates: list[float] = []
    for callers in (1, 8):
        done = subprocess.run(
            [_PEER_PYTHON, "benchmarks/dbos_workflows.py", url, str(PEER_WORKFLOWS), str(callers)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"DBOS failed: {done.stderr[-2000:]}")
        rates.append(PEER_WORKFLOWS * engine_worker.STEPS / json.loads(done.stdout.splitlines()[-1]))
    return max(rates)
