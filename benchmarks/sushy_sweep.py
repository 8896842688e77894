"""The peer: what Ironic's power synchronisation does, 8 threads of plain sushy. Run by the Python of `.peers`.

Reads one JSON object from standard input: the addresses, the user and the password. For each line that follows it
sweeps once, and prints wall seconds, processor seconds and failures as JSON. Clients and systems are made before.
"""

import concurrent.futures
import json
import resource
import sys
import time
from typing import Any

import sushy
import urllib3

urllib3.disable_warnings()
THREADS = 8


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    task = json.loads(sys.stdin.readline())
    pool = concurrent.futures.ThreadPoolExecutor(THREADS)

    def connect(address: str) -> Any:
        return sushy.Sushy(address, username=task["user"], password=task["password"], verify=False)

    clients = list(pool.map(connect, task["addresses"]))
    paths = [client.get_system().path for client in clients[:1]] * len(clients)

    def read(place: tuple[Any, str]) -> str:
        client, path = place
        return str(client.get_system(path).power_state)

    list(pool.map(read, zip(clients, paths, strict=True)))
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        started, used = time.perf_counter(), cpu()
        states = list(pool.map(read, zip(clients, paths, strict=True)))
        failures = [state for state in states if "ON" not in state.upper() and "OFF" not in state.upper()]
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([time.perf_counter() - started, cpu() - used, failures, rss]), flush=True)


main()
