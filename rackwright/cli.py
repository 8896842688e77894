"""The root of the command line. It loads a room only when one of that room's commands is asked for."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

__all__ = ["COMMANDS", "Place", "main", "root"]

_PROGRAM = "rackwright"
_COMPLETE_VARIABLE = "_RACKWRIGHT_COMPLETE"
_ROOMS = ("protocol", "drivers", "agent", "control_plane", "ramdisk", "simulators", "rackwright")


class Place(NamedTuple):
    """Where a command is found, and what is said of it before it is loaded."""

    module: str
    attribute: str
    help: str
    extra: str | None = None
    """The optional part of the installation that it needs."""


_OPERATOR = "rackwright.operator"
"""Its `commands` maps each name to a click command; they come from the control plane's table of verbs."""

COMMANDS: Mapping[str, Place] = {
    "bmc": Place("rackwright.bmc", "bmc", "Drive one BMC directly, with no control plane.", "drivers"),
    "agent": Place("agent.cli", "agent", "Run, join and look after the agent of a site or host.", "agent"),
    "control-plane": Place(
        "control_plane.cli", "control_plane", "Run and administer the control plane.", "control-plane"
    ),
    "ramdisk": Place("ramdisk.cli", "ramdisk", "Build what machines are installed from; the agent in it.", "agent"),
    "simulate": Place("simulators.cli", "simulate", "Serve BMCs that are not there.", "simulators"),
    "login": Place(_OPERATOR, "login", "Remember a control plane and a token for it."),
    "nodes": Place(_OPERATOR, "nodes", "The machines."),
    "invoke": Place(_OPERATOR, "invoke", "Do one operation on a node."),
    "console": Place("rackwright.console_command", "console", "Be at a node's serial console.", "operator"),
    "commands": Place(_OPERATOR, "commands", "What agents were asked to do, and how it ended."),
    "drivers": Place(_OPERATOR, "drivers", "What can be done to machines."),
    "profiles": Place(_OPERATOR, "profiles", "What is to be done to machines, step by step."),
    "workflows": Place(_OPERATOR, "workflows", "What runs on a node, step by step."),
    "doctor": Place(_OPERATOR, "doctor", "What an operator should look at."),
    "sites": Place(_OPERATOR, "sites", "The places with machines."),
    "agents": Place(_OPERATOR, "agents", "The agents that have joined."),
    "join-tokens": Place(_OPERATOR, "join-tokens", "Tokens with which agents join."),
    "tokens": Place(_OPERATOR, "tokens", "Who may use the API, and for what."),
    "events": Place(_OPERATOR, "events", "What has happened."),
    "audit": Place(_OPERATOR, "audit", "Who changed what, and who was refused."),
}


class _LazyGroup(click.Group):
    """Shows its help from the table; imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        place = COMMANDS.get(cmd_name)
        return None if place is None else _load(cmd_name, place)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.list_commands(ctx) or name.startswith("-"):
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, self.list_commands(ctx), 3, 0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"'{_PROGRAM} --help' lists them"
        raise click.UsageError(f"there is no command {name!r}: {hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._help_of(name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=self._help_of(name)) for name in names] or super().shell_complete(
            ctx, incomplete
        )

    def _help_of(self, name: str) -> str:
        return COMMANDS[name].help if name in COMMANDS else self.commands[name].get_short_help_str(100)


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from protocol import VERSION

        click.echo(f"{_PROGRAM} {VERSION}")
        ctx.exit()


@click.group(cls=_LazyGroup, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def root() -> None:
    """Take servers from the loading dock to a running operating system, and keep hold of them afterwards.

    Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused.
    """


@root.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell code that completes commands and operations.

    \b
    bash:  eval "$(rackwright completion bash)"      in ~/.bashrc
    zsh:   eval "$(rackwright completion zsh)"       in ~/.zshrc
    fish:  rackwright completion fish > ~/.config/fish/completions/rackwright.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(kind(root, {}, _PROGRAM, _COMPLETE_VARIABLE).source())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; the exit code. Errors go to standard error as text, never as a traceback."""
    try:
        code = root.main(
            None if arguments is None else list(arguments),
            prog_name=_PROGRAM,
            complete_var=_COMPLETE_VARIABLE,
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except OSError as error:
        # A full disk, a file that is not this user's: trouble of the host, not a fault of the program.
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {place}{error.strerror or error}", err=True)
        return 1
    except Exception as error:
        # Only a room that is loaded can have raised one of these, so nothing is imported for the sake of asking.
        if "protocol.errors" not in sys.modules:
            raise
        from protocol.errors import RackwrightError
        from protocol.presentation import error_text, exit_code

        if not isinstance(error, RackwrightError):
            raise
        click.echo(error_text(error), err=True)
        return exit_code(error)
    return code if isinstance(code, int) else 0


def _load(name: str, place: Place) -> click.Command:
    """The command itself. Raises a ClickException that says what to install when a part is missing."""
    try:
        module = import_module(place.module)
    except ModuleNotFoundError as error:
        missing = error.name or place.module
        if missing.partition(".")[0] in _ROOMS:
            raise click.ClickException(f"'{name}' is not part of this installation: there is no {missing}") from error
        wanted = _PROGRAM if place.extra is None else f"{_PROGRAM}[{place.extra}]"
        raise click.ClickException(
            f"'{name}' needs {missing}, which is not installed: pip install '{wanted}'"
        ) from error
    found = module.commands[name] if place.module == _OPERATOR else getattr(module, place.attribute)
    if not isinstance(found, click.Command):
        raise TypeError(f"{place.module}.{place.attribute} is not a command")
    return found
