"""`rackwright simulate redfish`: simulated Redfish BMCs until a signal ends them."""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import click

from simulators.login import DEFAULT_PASSWORD, DEFAULT_USER, hint, read_password
from simulators.redfish.faults import FaultFileError, FaultRule, load_faults
from simulators.redfish.fleet import RedfishFleet
from simulators.redfish.options import ServiceOptions
from simulators.redfish.tls import TlsMaterial
from simulators.redfish.tree import OWN_TREE, RecordedTree, TreeError
from simulators.redfish.vendors import BEHAVIOURS

LISTED_URLS = 20


async def serve(fleet: RedfishFleet, announce: Callable[[str], None], login: str = "") -> None:
    """Serves until SIGTERM or SIGINT, then stops cleanly: no socket and no task is left.

    `login` is what is told of it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with fleet:
            for url in fleet.urls[:LISTED_URLS]:
                announce(url)
            if len(fleet) > LISTED_URLS:
                announce(f"and {len(fleet) - LISTED_URLS} more, the last at {fleet.urls[-1]}")
            if fleet.tls is not None:
                announce(f"certificate SHA-256 {fleet.tls.fingerprint}")
            if login:
                announce(login)
            await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run(
    tree: Path = OWN_TREE,
    *,
    count: int = 1,
    user: str = DEFAULT_USER,
    password: str = DEFAULT_PASSWORD,
    tls: bool | TlsMaterial = True,
    host: str = "127.0.0.1",
    port: int = 0,
    first_address: str | None = None,
    latency: float = 0.0,
    faults: tuple[FaultRule, ...] = (),
    behaviour: str | None = None,
    options: ServiceOptions | None = None,
    control: bool = False,
    announce: Callable[[str], None] = click.echo,
) -> None:
    """Serves BMCs in this process until a signal ends it. Raises TreeError and OSError as RedfishFleet does."""
    fleet = RedfishFleet(
        RecordedTree.load(tree),
        count,
        users={user: password},
        tls=tls,
        host=host,
        port=port,
        first_address=first_address,
        latency=latency,
        options=options,
        behaviour=behaviour,
        control=control,
    )
    for server in fleet:
        for rule in faults:
            server.faults.add(rule)
    asyncio.run(serve(fleet, announce, hint(user, password)))


@click.command()
@click.option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=OWN_TREE,
    help="Folder of a recorded tree, in the layout of DMTF mockups.  [default: a small 1U server of our own]",
)
@click.option(
    "--faults",
    "fault_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON or TOML file of fault rules.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the first BMC; 0 takes free ones.")
@click.option("--user", default=DEFAULT_USER, show_default=True, help="User name of the login.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File whose first line is the password.  [default: one that is printed]",
)
@click.option(
    "--tls/--http", "with_tls", default=True, show_default=True, help="TLS with a fresh certificate, or none."
)
@click.option(
    "--cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate in PEM, with --key."
)
@click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its private key in PEM.")
@click.option("--latency", type=click.FloatRange(min=0), default=0.0, help="Seconds before each answer.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many BMCs.")
@click.option("--first-address", help="Give each BMC its own address from this one on, such as 127.1.0.1.")
@click.option(
    "--behaviour", type=click.Choice(sorted(BEHAVIOURS)), help="Vendor behaviour.  [default: what the tree tells]"
)
@click.option(
    "--power-seconds", type=click.FloatRange(min=0), default=0.0, help="Seconds that power on and off take."
)
@click.option("--task-seconds", type=click.FloatRange(min=0), default=0.0, help="Seconds that tasks take.")
@click.option(
    "--manager-reset-seconds", type=click.FloatRange(min=0), default=0.0, help="Seconds a manager reset takes."
)
@click.option(
    "--max-sessions", type=click.IntRange(min=1), default=32, show_default=True, help="Sessions at one time."
)
@click.option("--strict", is_flag=True, help="Answer only the exact spelling of each path.")
@click.option("--control", is_flag=True, help="Open /_simulator for faults, journal and state, without a login.")
@click.option("--verbose", is_flag=True, help="Log what happens to standard error.")
def redfish(
    tree: Path,
    fault_file: Path | None,
    host: str,
    port: int,
    user: str,
    password_file: Path | None,
    with_tls: bool,
    cert: Path | None,
    key: Path | None,
    latency: float,
    count: int,
    first_address: str | None,
    behaviour: str | None,
    power_seconds: float,
    task_seconds: float,
    manager_reset_seconds: float,
    max_sessions: int,
    strict: bool,
    control: bool,
    verbose: bool,
) -> None:
    """Serve simulated Redfish BMCs until Ctrl-C. Each prints its URL on a line of its own."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING)
    if (cert is None) != (key is None):
        raise click.UsageError("--cert and --key belong together: give both or none.")
    options = ServiceOptions(
        power_on_seconds=power_seconds,
        power_off_seconds=power_seconds,
        graceful_off_seconds=power_seconds,
        task_seconds=task_seconds,
        manager_reset_seconds=manager_reset_seconds,
        max_sessions=max_sessions,
        strict_paths=strict,
    )
    try:
        run(
            tree,
            count=count,
            user=user,
            password=read_password(password_file),
            tls=TlsMaterial.from_files(cert, key) if cert and key and with_tls else with_tls,
            host=host,
            port=port,
            first_address=first_address,
            latency=latency,
            faults=tuple(load_faults(fault_file)) if fault_file else (),
            behaviour=behaviour,
            options=options,
            control=control,
        )
    except (TreeError, FaultFileError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
