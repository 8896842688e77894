"""Run inside a network namespace by test_network: sets its ports, and says on standard output what it is asked."""

import asyncio
import json
import sys
from pathlib import Path

import msgspec

from drivers.linux.host import Host
from protocol.boot_ticket import TicketNetwork
from ramdisk.consoles import Announcer
from ramdisk.network import Network
from ramdisk.network_plan import Port


def tell(**values: str) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Told(Announcer):
    """What would be said on the consoles."""

    def say(self, text: str, *, about: str = "") -> None:
        if about and self._said.get(about) == text:
            return
        self._said[about] = text
        tell(said=text)


async def main(folder: Path, network: TicketNetwork, names: list[str]) -> None:
    host = Host()
    ports = [Port(name, (host.text("class", "net", name, "address") or "")) for name in names]
    keeper = Network(
        host,
        folder / "network",
        Told(host),
        resolver=folder / "resolv.conf",
        ports=lambda: [port._replace(order=order) for order, port in enumerate(ports)],
    )
    running = asyncio.create_task(keeper.run())
    keeper.configure(network)
    telling = asyncio.create_task(tell_when_ready(keeper))
    # Until the test closes its end.
    await asyncio.to_thread(sys.stdin.read)
    for task in (running, telling):
        task.cancel()
    await asyncio.gather(running, telling, return_exceptions=True)


async def tell_when_ready(keeper: Network) -> None:
    await keeper.ready.wait()
    tell(ready=keeper.state())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=TicketNetwork), sys.argv[3:]))
