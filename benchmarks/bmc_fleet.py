"""Redfish BMCs for a benchmark, in a process of their own: our own server over HTTPS, on loopback."""

import asyncio

import uvloop

from benchmarks.children import Child, Pipe, more_files
from benchmarks.swept_agent import PASSWORD, USER
from simulators.redfish import RedfishFleet, TlsMaterial

__all__ = ["requests_of", "serve_bmcs"]


def serve_bmcs(pipe: Pipe, count: int, latency: float) -> None:
    """Says the addresses, then answers each message with the number of requests that all BMCs have had."""
    more_files()
    uvloop.run(_serve(pipe, count, latency))


def requests_of(bmcs: Child) -> int:
    bmcs.pipe.send("requests")
    return int(bmcs.receive())


async def _serve(pipe: Pipe, count: int, latency: float) -> None:
    tls = TlsMaterial.self_signed(("127.0.0.1",))
    async with RedfishFleet(count=count, users={USER: PASSWORD}, tls=tls, latency=latency) as fleet:
        pipe.send(list(fleet.urls))
        while True:
            await asyncio.to_thread(pipe.recv)
            pipe.send(fleet.requests)
