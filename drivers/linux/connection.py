"""The connection to the machine that the driver runs on: nothing is opened, and nothing has to be closed."""

from collections.abc import Awaitable, Callable, Mapping

from drivers.linux.host import Host

__all__ = ["ConfigDriveFiles", "LinuxConnection"]

ConfigDriveFiles = Callable[[], Awaitable[Mapping[str, bytes]]]
"""The files that bring the installed system's agent its ticket, made at the last moment and never in a command."""


class LinuxConnection:
    def __init__(self, host: Host, config_drive_files: ConfigDriveFiles | None = None) -> None:
        self.host = host
        self.config_drive_files = config_drive_files

    async def aclose(self) -> None:
        """There is no session."""
