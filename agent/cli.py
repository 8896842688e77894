"""`rackwright agent`: run it, join it, keep its credentials, ask how it is.

What is heavy is loaded inside the commands, so that help and completion are quick.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agent.config import Config
    from agent.status import Report
    from agent.vault import Vault
    from protocol.secret import Secret

__all__ = ["agent"]

_LONGEST_PASSWORD = 4096
_LONGEST_KEY = 65_536


class _Failure(click.ClickException):
    """An error as text: its code, what happened, what to do next."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def show(self, file: object = None) -> None:
        click.echo(f"error: {self.code}: {self.message}", err=True)


class _Faulty(_Failure):
    exit_code = 2


class _Missing(_Failure):
    exit_code = 3


class _Refused(_Failure):
    exit_code = 4


_KINDS: Mapping[int, type[_Failure]] = {1: _Failure, 2: _Faulty, 3: _Missing, 4: _Refused}


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turns the agent's own errors into text and an exit code: 2 for a faulty configuration, 4 when refused."""
    from agent.errors import AgentError

    try:
        yield
    except AgentError as error:
        kind = _KINDS[{"CONFIG_INVALID": 2, "JOIN_REFUSED": 4}.get(error.code, 1)]
        raise kind(error.code, error.message) from None
    except PermissionError as error:
        raise _Refused(
            "NOT_ALLOWED", f"{error.filename}: permission denied: run this as root or as the agent's user"
        ) from None


_config_option = click.option(
    "--config",
    "config_path",
    metavar="F",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file; /etc/rackwright/agent.toml where it is there.",
)


@click.group(no_args_is_help=True)
def agent() -> None:
    """Run, join and look after the agent of a site or host."""


@agent.command("run")
@_config_option
def run_command(config_path: Path | None) -> None:
    """Run the agent in the foreground, as systemd does. SIGTERM stops it, SIGHUP reads the configuration anew."""
    with _told():
        config = _load(config_path)
        from agent.service import run

        run(config, config_path)


@agent.command("join", no_args_is_help=True)
@click.argument("url")
@click.argument("token")
@click.option("--force", is_flag=True, help="Replace the identity that this agent has.")
@_config_option
def join_command(url: str, token: str, force: bool, config_path: Path | None) -> None:
    """Join the control plane at URL with a one-time TOKEN ("-" reads it from standard input).

    The token is made by `rackwright control-plane join-token create`, and is of no use after this. Where the
    connection broke before the answer came, the same command can be given again until the token expires.
    """
    with _told():
        config = _load(config_path)
        import asyncio

        from agent.identity import IdentityStore
        from agent.joining import join

        text = sys.stdin.readline() if token == "-" else token  # noqa: S105
        identity = asyncio.run(join(url, text, IdentityStore(config.state / "identity"), force=force))
    facts = identity.facts
    click.echo(f"joined as {facts.agent_id}, role {facts.role}, site {facts.site or '-'}, at {facts.control_plane}")


@agent.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the exact report as JSON.")
@_config_option
def status_command(as_json: bool, config_path: Path | None) -> None:
    """Tell whether the agent runs, is connected, what it holds and which logins are stopped.

    The exit code is 0 when it runs and is connected, else 1.
    """
    with _told():
        config = _load(config_path)
        from agent.status import report

        found = report(config)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for name, value in status_lines(found):
            click.echo(f"{name + ':':<15}{value}")
    if not (found.running and found.link is not None and found.link.connected):
        raise SystemExit(1)


@agent.group("credentials", no_args_is_help=True)
def credentials() -> None:
    """Keep the BMC passwords of this site, encrypted on this host."""


@credentials.command("set", no_args_is_help=True)
@click.argument("ref")
@click.option("--user", metavar="U", default="", help="The BMC's user name.")
@click.option(
    "--password-file",
    metavar="F",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Read the password from this file.",
)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from standard input.")
@click.option(
    "--key-file",
    metavar="F",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="In place of a password: the private key for SSH in this file, in PEM and without a passphrase.",
)
@_config_option
def set_command(
    ref: str,
    user: str,
    password_file: Path | None,
    from_stdin: bool,
    key_file: Path | None,
    config_path: Path | None,
) -> None:
    """Store the credential REF, such as site1/bmc/rack4. A running agent uses it at once."""
    from protocol.secret import Secret

    if (password_file is not None) + (key_file is not None) + from_stdin > 1:
        raise click.UsageError("give --password-file, --stdin or --key-file, not both of two")
    if key_file is not None:
        _store(config_path, ref, user, Secret(_private_key(key_file)))
        return
    if password_file is not None:
        text = password_file.read_text()
    elif from_stdin:
        text = sys.stdin.read(_LONGEST_PASSWORD + 1)
    elif sys.stdin.isatty():
        text = click.prompt(f"Password of {user or ref}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise click.UsageError("there is no terminal to ask on: give --password-file or --stdin")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text or "\n" in text or len(text) > _LONGEST_PASSWORD:
        raise click.UsageError("the password is one line of text, and not empty")
    _store(config_path, ref, user, Secret(text))


def _store(config_path: Path | None, ref: str, user: str, secret: "Secret") -> None:
    with _told():
        version = _vault(_load(config_path), make_key=True).set(ref, user, secret)
    click.echo(f"{ref} is set, version {version}")


def _private_key(file: Path) -> str:
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("-----BEGIN ") or len(text) > _LONGEST_KEY:
        raise click.UsageError(f"{file} holds no private key in PEM")
    return text


@credentials.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@_config_option
def list_command(as_json: bool, config_path: Path | None) -> None:
    """List the credentials: reference, user, version, when it was changed. Never a password."""
    with _told():
        listed = _vault(_load(config_path)).list()
    if as_json:
        import msgspec

        click.echo(json.dumps([msgspec.to_builtins(entry) for entry in listed], indent=2))
        return
    width = max((len(entry.ref) for entry in listed), default=0)
    for entry in listed:
        own = f"  and of their own: {', '.join(entry.machines)}" if entry.machines else ""
        when = _when(entry.changed_at / 1000)
        click.echo(f"{entry.ref:<{width}}  {entry.user or '-'}  v{entry.version}  {when}{own}")


@credentials.command("remove", no_args_is_help=True)
@click.argument("ref")
@_config_option
def remove_command(ref: str, config_path: Path | None) -> None:
    """Remove the credential REF."""
    with _told():
        removed = _vault(_load(config_path)).remove(ref)
    if not removed:
        raise _Missing("NOT_FOUND", f"there is no credential {ref!r}: `rackwright agent credentials list` shows them")
    click.echo(f"{ref} is removed")


@credentials.command("check", no_args_is_help=True)
@click.argument("ref")
@click.option("--address", required=True, metavar="URL", help="The BMC: https://host, ipmi://host or a bare host.")
@click.option("--tls", default="verify", show_default=True, help="verify, ca:/path.pem, sha256:<hex> or none.")
@_config_option
def check_command(ref: str, address: str, tls: str, config_path: Path | None) -> None:
    """Try the credential REF at one BMC: one login and one reading, no more, so that nothing is locked."""
    import asyncio

    from protocol.errors import OperationError

    with _told():
        config = _load(config_path)
        try:
            vendor = asyncio.run(_check(_vault(config), ref, address, tls))
        except OperationError as error:
            from protocol.presentation import exit_code

            raise _KINDS[exit_code(error)](error.code.value, str(error).partition(": ")[2]) from None
    click.echo(f"{ref} is good at {address} ({vendor})")


async def _check(vault: "Vault", ref: str, address: str, tls: str) -> str:
    from agent.errors import VaultError
    from drivers import Drivers, Target

    found = vault.lookup(ref)
    if found is None:
        raise VaultError(f"there is no credential {ref!r}: set it with `rackwright agent credentials set {ref}`")
    target = Target(address=address, username=found.user, password=found.password, verify=tls)
    async with Drivers() as drivers:
        if target.driver_name == "ssh":
            await drivers.invoke(target, "console.getConsole")
            return "SSH"
        reading = await drivers.invoke(target, "power.getPower")
    return f"power is {reading.get('state')}"


def _load(path: Path | None) -> "Config":
    from agent.config import load

    return load(path)


def _vault(config: "Config", *, make_key: bool = False) -> "Vault":
    from agent.files import make_private_folder
    from agent.vault import Vault, VaultKey

    if make_key:
        make_private_folder(config.state)
    return Vault(config.state / "vault.json", lambda: VaultKey.load(config.vault_key_file, make=make_key))


_WATCHED = {"nodes": "machines", "withEvents": "tell of events", "troubled": "cannot be asked"}


def status_lines(found: "Report") -> Iterator[tuple[str, str]]:
    yield "agent", f"runs as process {found.pid}, version {found.version}" if found.running else "does not run"
    if found.joined:
        yield "identity", f"{found.agent_id}, role {found.role}, site {found.site or '-'}"
        yield "certificate", f"until {_when(found.certificate_ends)}"
    if found.trouble:
        yield "trouble", found.trouble
    if found.control_plane:
        yield "control plane", found.control_plane
    link = found.link
    if link is not None:
        if link.connected:
            yield "connected", f"since {_when(link.since)}"
        else:
            yield "connected", "no, revoked: an operator must act" if link.revoked else "no"
        if link.last_error:
            yield "last error", f"{_when(link.last_error_at)}: {link.last_error}"
    yield "held", ", ".join(f"{count} {state}" for state, count in found.held.items() if count) or "nothing"
    if found.watched:
        told = ((found.watched.get(key, 0), words) for key, words in _WATCHED.items())
        yield "watched", ", ".join(f"{count} {words}" for count, words in told)
    for endpoint, reasons in found.blocked.items():
        yield "login stopped", f"{endpoint}: {'; '.join(reasons)}"


def _when(moment: float | None) -> str:
    return "-" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
