"""`rackwright simulate ipmi`: fake IPMI BMCs on UDP ports until a signal ends them."""

import asyncio
import contextlib
import logging
import signal
from pathlib import Path

import click

from simulators.ipmi.accounts import User
from simulators.ipmi.bmc import IpmiBmc
from simulators.ipmi.ciphers import SUITES
from simulators.ipmi.faults import FaultError, FaultRule, load_faults
from simulators.ipmi.identity import Identity
from simulators.ipmi.journal_file import JournalFile
from simulators.ipmi.server import IpmiFleet
from simulators.login import DEFAULT_PASSWORD, DEFAULT_USER, hint

log = logging.getLogger(__name__)


def _suites(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    known = {str(number): number for number in SUITES}
    words = [word.strip() for word in value.split(",")]
    wrong = [word for word in words if word not in known]
    if wrong:
        raise click.BadParameter(f"{', '.join(map(repr, wrong))}: write 3, 17 or 3,17")
    return tuple(known[word] for word in words)


def _faults(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        try:
            load_faults(value)
        except FaultError as error:
            raise click.BadParameter(str(error)) from error
    return value


def _password(context: click.Context, parameter: click.Parameter, value: Path | None) -> bytes:
    if value is None:
        return DEFAULT_PASSWORD.encode()
    try:
        return value.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}: give a readable file with the password") from error


@click.command("ipmi")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address, or the first one with --addresses.")
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="First port; 0: free ones.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How many BMCs.")
@click.option("--addresses", is_flag=True, help="One address for each BMC, instead of one port each.")
@click.option("--user", default=DEFAULT_USER, show_default=True, help="Name of the administrator.")
@click.option(
    "--password-file",
    "password",
    type=click.Path(path_type=Path),
    callback=_password,
    help="File with the password.  [default: one that is printed]",
)
@click.option(
    "--delay", default=0.0, show_default=True, type=click.FloatRange(0), help="Milliseconds before an answer."
)
@click.option(
    "--faults",
    type=click.Path(path_type=Path),
    callback=_faults,
    help="TOML or JSON file of fault rules; read again on SIGHUP.",
)
@click.option("--suites", default="3,17", show_default=True, callback=_suites, help="Cipher suites offered.")
@click.option("--off", is_flag=True, help="Machines that are off at the start.")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write down in, as JSON lines, what the BMCs were asked and what their machines did.",
)
def ipmi(
    host: str,
    port: int,
    count: int,
    addresses: bool,
    user: str,
    password: bytes,
    delay: float,
    faults: Path | None,
    suites: tuple[int, ...],
    off: bool,
    journal: Path | None,
) -> None:
    """Fake IPMI 2.0 BMCs (RMCP+), each with a machine behind it.

    Prints the address of each BMC, then answers until SIGINT or SIGTERM.
    """
    rules = load_faults(faults) if faults is not None else []
    try:
        bmcs = [
            IpmiBmc(
                users=[User(user, password)],
                suites=suites,
                powered=not off,
                answer_delay=delay / 1000,
                faults=rules,
                identity=Identity.numbered(number),
            )
            for number in range(1, count + 1)
        ]
        fleet = IpmiFleet(bmcs, host=host, port=port, addresses=addresses)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        journal_file = None if journal is None else JournalFile(journal)
    except OSError as error:
        raise click.ClickException(f"cannot write {journal}: {error.strerror}: choose another --journal") from error
    try:
        with journal_file or contextlib.nullcontext():
            asyncio.run(_serve(fleet, faults, journal_file, hint(user, password.decode("utf-8", "replace"))))
    except OSError as error:
        raise click.ClickException(f"cannot listen: {error}: choose another --host or --port") from error


async def _serve(fleet: IpmiFleet, faults: Path | None, journal: JournalFile | None, login: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(fleet, faults))
    async with fleet:
        for server in fleet.servers:
            name = f"{server.host}:{server.port}"
            if journal is not None:
                journal.follow(server.bmc, name)
            click.echo(f"ipmi://{name}")
        click.echo(login)
        await stop.wait()


def _reload(fleet: IpmiFleet, faults: Path | None) -> None:
    if faults is None:
        return
    try:
        rules: list[FaultRule] = load_faults(faults)
    except FaultError as error:
        log.error("the fault rules stay as they were: %s", error)
        return
    for bmc in fleet.bmcs:
        bmc.faults.replace(rules)
    log.info("%d fault rules in force", len(rules))
