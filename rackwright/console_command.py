"""`rackwright console NODE`: the machine's serial console on the operator's terminal, by way of the control plane."""

import asyncio

import click

from protocol.durations import parse_duration
from protocol.shapes.console import ConsoleKind
from rackwright.escape_keys import DEFAULT_ESCAPE, escape_key

__all__ = ["console", "escape_option", "stay_option"]


def _escape(context: click.Context, parameter: click.Parameter, value: str) -> bytes | None:
    try:
        return escape_key(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _stay(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


escape_option = click.option(
    "--escape",
    metavar="KEY",
    default=DEFAULT_ESCAPE,
    show_default=True,
    callback=_escape,
    help="The escape key: ^] for Ctrl-], one character, or none.",
)
stay_option = click.option(
    "--stay",
    metavar="D",
    callback=_stay,
    help="Where the input is no terminal: how long to read on after its end, such as 5s. Default: until interrupted.",
)


@click.command(no_args_is_help=True)
@click.argument("node")
@click.option("--read-only", is_flag=True, help="Read along, and never type.")
@click.option("--force", is_flag=True, help="Be the one who types at once; whoever does so now is told.")
@click.option("--take-over", is_flag=True, help="End a session at the BMC that somebody else holds.")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in ConsoleKind]),
    help="sol (IPMI) or ssh; as the node is bound by default.",
)
@click.option("--command", metavar="C", help="ssh: what opens the console on a command line that is not known here.")
@escape_option
@stay_option
@click.option("--tenant", help="Whose; needed by a token that is good for every tenant.")
def console(
    node: str,
    read_only: bool,
    force: bool,
    take_over: bool,
    kind: str | None,
    command: str | None,
    escape: bytes | None,
    stay: float | None,
    tenant: str | None,
) -> None:
    """Be at the serial console of NODE. Many may read it; one types.

    On a terminal: Ctrl-] . ends it, Ctrl-] b sends a break, Ctrl-] w makes you the one who types, Ctrl-] ? helps.
    Elsewhere the input is typed as it is, and output goes on until interrupted (or as --stay says).
    """
    query = {
        name: "true"
        for name, wanted in (("readOnly", read_only), ("force", force), ("takeOver", take_over))
        if wanted
    }
    query |= {name: value for name, value in (("kind", kind), ("command", command)) if value}
    if read_only and force:
        raise click.UsageError("--read-only never types, and --force wants to: give one of the two")

    async def run() -> int:
        from rackwright.console_link import ConsoleLink
        from rackwright.console_session import run_console
        from rackwright.login import connect

        with connect(tenant) as client:
            async with ConsoleLink(client, node, query) as far:
                return await run_console(far, title=f"console of {node}", escape=escape, stay=stay)

    click.get_current_context().exit(asyncio.run(run()))
