"""`rackwright control-plane`: run it, and what its host's administrator does."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from protocol.errors import RackwrightError, RequestCode, RequestError

__all__ = ["control_plane"]

_DEFAULT_TENANT = "default"
ResultT = TypeVar("ResultT")

_config = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The settings, a TOML file. Default: /etc/rackwright/control-plane.toml, if it is there.",
)
_tenant = click.option("--tenant", default=_DEFAULT_TENANT, show_default=True, help="Whose it is.")
_json = click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")


@click.group("control-plane")
def control_plane() -> None:
    """Run and administer the control plane on this host."""


@control_plane.command()
@_config
def serve(file: Path | None) -> None:
    """Serve operators and agents until SIGTERM."""

    def run() -> None:
        import uvloop

        from control_plane.server import serve as serve_until_stopped

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_until_stopped(_load(file)))

    _reported(run)


@control_plane.command()
@_config
def migrate(file: Path | None) -> None:
    """Bring the database's tables up to this version. Stop the workers and make a backup first."""

    async def run() -> list[str]:
        from control_plane.config import store_url
        from control_plane.server import make_state_folder
        from control_plane.store import migrate as apply
        from control_plane.store import open_store

        config = _load(file)
        make_state_folder(config.state)
        store = open_store(store_url(config))
        try:
            return [f"{migration.version:04}_{migration.name}" for migration in await apply(store)]
        finally:
            await store.close()

    applied = _reported(lambda: asyncio.run(run()))
    click.echo(f"applied: {', '.join(applied)}" if applied else "the tables are up to date")


@control_plane.command(short_help="Copy the SQLite database to FILE.")
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@_config
def backup(target: Path, file: Path | None) -> None:
    """Copy the SQLite database to FILE, also while the control plane runs."""

    def run() -> None:
        from control_plane.config import store_url
        from control_plane.store import backup as copy

        copy(store_url(_load(file)), target)

    _reported(run)
    click.echo(f"{target} holds the database as it was just now; the CA's folder is to be kept beside it")


@control_plane.group("join-token")
def join_token() -> None:
    """Tokens with which agents join."""


@join_token.command("create")
@click.option("--site", required=True, help="The site's name or id.")
@click.option("--role", type=click.Choice(["site"]), default="site", show_default=True)
@click.option("--ttl", default="1h", show_default=True, help="How long it can be used.")
@click.option("--create-site", is_flag=True, help="Make the site where there is none of this name.")
@_tenant
@_json
@_config
def create_join_token(
    site: str, role: str, ttl: str, create_site: bool, tenant: str, as_json: bool, file: Path | None
) -> None:
    """Make a token with which one agent joins; it is shown this once."""
    request = {"tenantId": tenant, "siteId": site, "role": role, "ttl": ttl, "createSite": create_site}
    made = _call(file, "joinTokens.create", request)
    if as_json:
        _echo_json(made)
        return
    click.echo(made["token"])
    _hint(f"On the site's host: rackwright agent join {made['agentUrl']} TOKEN   (until {made['expiresAt']}, once)")


@control_plane.group()
def token() -> None:
    """Tokens for operators and programs."""


@token.command("create")
@click.option("--name", required=True, help="Whom or what it is for.")
@click.option("--permission", "permissions", multiple=True, help="Such as 'compute:nodes:*'; repeatable. Default: *.")
@click.option("--ttl", help="How long it is good; without, until it is revoked.")
@_tenant
@_json
@_config
def create_token(
    name: str, permissions: tuple[str, ...], ttl: str | None, tenant: str, as_json: bool, file: Path | None
) -> None:
    """Make an API token; it is shown this once. A tenant of '*' makes one that is good for every tenant."""
    request: dict[str, Any] = {"name": name, "permissions": list(permissions) or ["*"]}
    request |= {"tenantId": _DEFAULT_TENANT, "forTenant": "*"} if tenant == "*" else {"tenantId": tenant}
    if ttl is not None:
        request["ttl"] = ttl
    made = _call(file, "tokens.create", request)
    if as_json:
        _echo_json(made)
        return
    click.echo(made["token"])
    _hint("Log in with it: rackwright login URL")


@control_plane.group("ca")
def certificate_authority() -> None:
    """The CA that signs the agents' certificates."""


@certificate_authority.command("show")
@_json
@_config
def show_ca(as_json: bool, file: Path | None) -> None:
    """Print the CA's certificate, and its SHA-256."""

    def run() -> tuple[str, str]:
        from control_plane.authority import Authority

        folder = _load(file).state / "ca"
        if not (folder / "ca.pem").exists():
            raise RequestError(
                RequestCode.NOT_FOUND,
                f"there is no CA in {folder} yet: it is made when the control plane first serves",
            )
        authority = Authority.open(folder)
        return authority.pem, authority.sha256

    pem, sha256 = _reported(run)
    if as_json:
        _echo_json({"certificate": pem, "sha256": sha256})
        return
    click.echo(pem, nl=False)
    _hint(f"sha256:{sha256}")


def _load(file: Path | None) -> Any:
    from control_plane.config import load

    return load(file)


def _call(file: Path | None, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    def run() -> dict[str, Any]:
        from control_plane.local import call

        return call(_load(file), verb, request)

    return _reported(run)


def _reported(run: Callable[[], ResultT]) -> ResultT:
    """What `run` gives; faulty settings and trouble with the database as errors that the root shows."""
    try:
        return run()
    except RackwrightError as error:
        from control_plane.config import ConfigError

        if not isinstance(error, ConfigError):
            raise
        raise RequestError.invalid(error.issues, str(error.file)) from error
    except Exception as error:
        from control_plane.store import StoreError

        if not isinstance(error, StoreError):
            raise
        raise RequestError(RequestCode.UNAVAILABLE, str(error)) from error


def _hint(text: str) -> None:
    """For a person; not part of what a script reads."""
    click.echo(text, err=True)


def _echo_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
