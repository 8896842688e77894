"""`rackwright simulate …`: each simulator brings its own command, which is imported only when it is asked for."""

from importlib import import_module

import click

# Command name: the module that holds it, its object there, and the line that `--help` shows of it.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "redfish": ("simulators.redfish.cli", "redfish", "Serve one or many simulated Redfish BMCs."),
    "machine": ("simulators.machine.cli", "machine", "Run a virtual machine behind a Redfish and IPMI BMC."),
    "ipmi": ("simulators.ipmi.cli", "ipmi", "Serve one or many simulated IPMI BMCs."),
}


class LazyCommands(click.Group):
    """A group whose commands live in modules that are imported on use, so that the command line starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])


@click.command(cls=LazyCommands)
def simulate() -> None:
    """Simulated BMCs for trials and tests. They listen on loopback unless told otherwise."""
