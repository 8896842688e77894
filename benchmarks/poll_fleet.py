"""One agent that polls 1,000 Redfish BMCs every 30 s: what of a processor it takes, and how much memory.

The BMCs are our own Redfish server over HTTPS, in a process of its own. What is measured begins when every session is
open and every machine was seen; it is steady polling, with no changes to tell of.
"""

import time

from benchmarks import Figure, polling_agent
from benchmarks.bmc_fleet import requests_of, serve_bmcs
from benchmarks.children import Child, child, more_files

BMCS = 1_000
EVERY_SECONDS = 30.0
ANSWER_SECONDS = 0.05
MEASURED_SECONDS = 60.0
_PATIENCE = 300.0


def run() -> list[Figure]:
    more_files()
    with child(serve_bmcs, BMCS, ANSWER_SECONDS) as bmcs:
        addresses: list[str] = bmcs.receive()
        with child(polling_agent.serve, addresses, EVERY_SECONDS) as agent:
            agent.receive()
            _wait_until_seen(agent)
            # What the first logins have left behind is no part of it.
            time.sleep(EVERY_SECONDS)
            asked, used, began = requests_of(bmcs), agent.cpu, time.perf_counter()
            time.sleep(MEASURED_SECONDS)
            wall = time.perf_counter() - began
            share = (agent.cpu - used) / wall * 100
            polls = requests_of(bmcs) - asked
            _, troubled = _state(agent)
            rss = agent.rss
            agent.pipe.send("stop")
            agent.receive()
    expected = BMCS * wall / EVERY_SECONDS
    if troubled or not expected * 0.85 < polls < expected * 1.2:
        raise RuntimeError(f"{polls} requests in {wall:.0f} s where {expected:.0f} were due; {troubled} in trouble")
    note = f"{BMCS} BMCs over HTTPS, each every {EVERY_SECONDS:g} s; {polls / wall:.1f} requests a second"
    return [
        Figure("poll.fleet.cpu", share, "% of a core", "", note=note),
        Figure("poll.fleet.ms_per_look", share / 100 * wall / polls * 1000, "ms", "", note="processor time"),
        Figure("poll.fleet.rss_mib", rss / (1 << 20), "MiB", "", note=note),
    ]


def _wait_until_seen(agent: Child) -> None:
    end = time.monotonic() + _PATIENCE
    while (found := _state(agent))[0] < BMCS:
        if time.monotonic() > end:
            raise RuntimeError(
                f"after {_PATIENCE:g} s {found[0]} of {BMCS} machines were seen, {found[1]} in trouble"
            )
        time.sleep(1)


def _state(agent: Child) -> tuple[int, int]:
    agent.pipe.send("state")
    seen, troubled = agent.receive()
    return seen, troubled
