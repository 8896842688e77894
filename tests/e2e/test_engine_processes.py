"""Three workers on one PostgreSQL under load, while everything around them fails (line A51, with real processes).

Workers are killed with SIGKILL and started again, the database's server is restarted in the middle, and the agent's
link is cut. All workflows must end well, and no machine may be reset once more than it was asked to be.
"""

import asyncio
import itertools
import json
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.authority import Authority
from control_plane.engine.profiles import create_profile
from control_plane.engine.registry import StepRegistry, default_registry
from control_plane.engine.start import Start, start
from control_plane.engine.timing import Timing
from control_plane.nodes import find_node
from control_plane.store import Store, StoreUnavailable, Transaction, open_store
from protocol.errors import RequestError
from tests.e2e.link_proxy import LinkProxy
from tests.e2e.processes import AgentProcess, ControlPlaneProcess, Program, rackwright
from tests.postgres import NoPostgres, PostgresPeer, private_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

TENANT = "default"
NODES = 12
RESETS = 3
"""In one workflow: one by the site's agent, two relayed by code."""
PLUGIN = '''
"""Steps that a plugin brings."""

from control_plane.engine.context import StepContext
from control_plane.engine.registry import NoArguments, StepRegistry


def register(registry: StepRegistry) -> None:
    @registry.step("load.think")
    async def think(context: StepContext, arguments: NoArguments) -> dict[str, object]:
        return {"key": context.key}

    @registry.step("load.reset", relays=("site",))
    async def reset(context: StepContext, arguments: NoArguments) -> dict[str, object]:
        payload = {
            "driver": "simulated",
            "concern": "power",
            "operation": "setPower",
            "args": {"action": "reset"},
            "targetNodeId": context.node_id,
            "target": {"address": "simulated://" + NAMES[context.node_id], "tls": "first-use"},
        }
        for key in ("one", "two"):
            await context.await_command(kind="driver.invoke", payload=payload, key=key)
        return {"relayed": 2}
'''
PROFILE = {
    "profile": "load",
    "drivers": {"power": "simulated"},
    "steps": [
        {"use": "load.think"},
        {"id": "reset", "use": "power.setPower", "on": "site", "with": {"action": "reset"}},
        {"use": "load.think"},
        {"use": "load.reset"},
        {"use": "load.think"},
    ],
    "cleanup": [{"use": "load.think", "id": "tidy"}],
}


class Worker(ControlPlaneProcess):
    """One of several, each with a state folder of its own and one CA."""

    def __init__(self, folder: Path, name: str, store_url: str, plugin: Path) -> None:
        (folder / name).mkdir()
        super().__init__(folder / name, store_url, log_level="info")
        self.config.write_text(self.config.read_text().replace('worker = "w1"', f'worker = "{name}"'))
        self._environment["PYTHONPATH"] = os.pathsep.join([str(plugin), *sys.path])


class Place:
    """The site, its machines, three workers, and the database under them."""

    def __init__(self, folder: Path, peer: PostgresPeer) -> None:
        self.peer = peer
        self.url = peer.create("engine")
        self.acts = folder / "machines"
        self.acts.mkdir()
        self.plugin = folder / "plugin"
        info = self.plugin / "load-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: load\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[rackwright.steps]\nload = load_steps:register\n")
        self.workers = [Worker(folder, f"w{number}", self.url, self.plugin) for number in (1, 2, 3)]
        Authority.open(self.workers[0].state / "ca")
        for worker in self.workers[1:]:
            shutil.copytree(self.workers[0].state / "ca", worker.state / "ca")
        self.proxy = LinkProxy(self._targets)
        script = folder / "machines.json"
        script.write_text('{"machines": {"*": {"latency": "150ms"}}}')
        environment = {"RACKWRIGHT_SIMULATED_STATE": str(self.acts), "RACKWRIGHT_SIMULATED_SCRIPT": str(script)}
        self.agent = AgentProcess(folder, environment, log_level="info")
        self._turn = itertools.count()

    def _targets(self) -> list[int]:
        """Another one first each time, as a balancer does."""
        first = next(self._turn) % 3
        return [worker.agents_port for worker in self.workers[first:] + self.workers[:first] if worker.running]

    def set_up(self) -> None:
        (self.plugin / "load_steps.py").write_text(PLUGIN)
        one = self.workers[0]
        rackwright("control-plane", "migrate", "--config", str(one.config))
        one.start()
        self.agent.join(one)
        names: dict[str, str] = {}
        for number in range(NODES):
            name = f"m{number}"
            node = one.call(
                "nodes.create", tenantId=TENANT, name=name, siteId="lab", bmc={"address": f"simulated://{name}"}
            )
            names[node["id"]] = name
        (self.plugin / "load_steps.py").write_text(f"{PLUGIN}\n\nNAMES = {names!r}\n")
        one.stop()
        for worker in self.workers:
            worker.token = one.token
            worker.start()
        self.agent.dial(self.proxy.port)
        self.agent.start()

    def tear_down(self) -> None:
        for program in (self.agent, *self.workers):
            if program.running:
                program.kill()
        self.proxy.close()

    def resets(self) -> Counter[str]:
        """What each machine really did."""
        done: Counter[str] = Counter()
        for file in self.acts.glob("*.acts"):
            acts = [json.loads(line) for line in file.read_text().splitlines()]
            done[file.stem] = len([act for act in acts if act["operation"] == "power.setPower"])
        return done


class Trouble(threading.Thread):
    """Kills a worker every few seconds and starts it again; once restarts the database, once cuts the link."""

    def __init__(self, place: Place) -> None:
        super().__init__(name="trouble", daemon=True)
        self.place = place
        self.over = threading.Event()
        self.enough = threading.Event()
        """Each kind of trouble has come at least once."""
        self.kills = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            for deed in itertools.count():
                if self.over.wait(2.5):
                    return
                self._kill(self.place.workers[deed % 3])
                if deed == 2:
                    self.place.peer.kill_server()
                    time.sleep(1)
                    self.place.peer.start()
                elif deed == 4:
                    self.place.proxy.cut()
                    time.sleep(2)
                    self.place.proxy.mend()
                elif deed == 7:
                    self.enough.set()
        except Exception as error:
            self.failure = error

    def _kill(self, worker: Worker) -> None:
        worker.kill()
        self.kills += 1
        time.sleep(random.uniform(0.1, 0.8))
        Program.start(worker)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    try:
        with private_server(durable=True) as peer:
            made = Place(tmp_path, peer)
            try:
                made.set_up()
                yield made
            finally:
                made.tear_down()
    except NoPostgres as missing:
        pytest.skip(str(missing))


def test_workflows_end_and_nothing_is_done_twice_whatever_is_killed(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(place.plugin))
    trouble = Trouble(place)
    trouble.start()
    begun = time.monotonic()
    try:
        rounds = asyncio.run(_load(place, trouble.enough))
    finally:
        trouble.over.set()
        trouble.join(30)
    assert trouble.failure is None
    assert place.resets() == {node: RESETS * count for node, count in rounds.items()}
    with capsys.disabled():
        sys.stdout.write(
            f"\n{rounds.total()} workflows through {trouble.kills} kills, a dead database and a cut link: "
            f"{time.monotonic() - begun:.0f} s\n"
        )


async def _load(place: Place, enough: threading.Event) -> Counter[str]:
    """Keeps every machine busy until there was enough trouble; how many workflows each of them had."""
    store = open_store(place.url)
    registry = default_registry()
    assert registry.get("load.reset") is not None
    try:
        await _patiently(store, create_profile, registry, Timing(), TENANT, PROFILE, "test")
        async with asyncio.TaskGroup() as group:
            for number in range(NODES):
                group.create_task(_keep_busy(store, registry, f"m{number}", enough))
        ends = await store.read(
            lambda tx: tx.all("SELECT nodes.name, state, error FROM workflows JOIN nodes ON nodes.id = node_id")
        )
        assert {(state, error) for _, state, error in ends} == {("succeeded", None)}
        return Counter(name for name, _, _ in ends)
    finally:
        await store.close()


async def _keep_busy(store: Store, registry: StepRegistry, node: str, enough: threading.Event) -> None:
    while not enough.is_set():
        await _patiently(store, _start_unless_active, registry, node)
        while await _patiently(store, _is_active, node):
            await asyncio.sleep(0.1)


def _start_unless_active(tx: Transaction, registry: StepRegistry, node: str) -> None:
    """A commit whose answer was lost is found by looking."""
    try:
        start(tx, registry, Timing(), Start(tenant_id=TENANT, profile_id="load", node_id=node))
    except RequestError as refused:
        if refused.code != "CONFLICT":
            raise


def _is_active(tx: Transaction, node: str) -> bool:
    node_id = find_node(tx, TENANT, node).id
    row = tx.one(
        "SELECT COUNT(*) FROM workflows WHERE node_id = :node AND state IN ('pending', 'running', 'paused')",
        {"node": node_id},
    )
    return row is not None and row[0] > 0


async def _patiently(store: Store, function: Any, *arguments: Any) -> Any:
    """Through the time in which the database is away."""
    end = time.monotonic() + 60
    while True:
        try:
            return await store.write(function, *arguments)
        except StoreUnavailable:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)
