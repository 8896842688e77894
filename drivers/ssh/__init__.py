"""A BMC's (or host's) own shell over SSH: for its serial console.

`shells` knows the command lines of the vendors, as data; `dialogue` finds which one it is and opens the console;
`login`, `trust` and `stream` do the I/O, by paramiko, whose blocking calls run in threads of their own.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from drivers.driver import Environment
from drivers.ssh.console import SshConnection, SshConsole
from drivers.target import Target
from protocol.operations import Concern

__all__ = ["DRIVER", "SshConnection", "SshDriver"]


class SshDriver:
    """The `ssh` driver: the console, and nothing else."""

    @property
    def name(self) -> str:
        return "ssh"

    @property
    def concerns(self) -> Mapping[Concern, Callable[[Any], object]]:
        return _CONCERNS

    def connect(self, target: Target, environment: Environment) -> SshConnection:
        """No I/O: each console has a connection of its own."""
        return SshConnection(target, environment)


_CONCERNS: Final[Mapping[Concern, Callable[[Any], object]]] = {Concern.CONSOLE: SshConsole}

DRIVER: Final = SshDriver()
