"""What a run has for itself: a folder that only its user can read, and a loopback address of its own.

Two runs at once do not meet: each binds its ports on another address of 127.0.0.0/8.
"""

import random
import shutil
import socket
import tempfile
from pathlib import Path

__all__ = ["DemoFailure", "Workspace"]


_LONGEST_PATH = 50
"""The control plane's socket lies in the folder, and the path of a socket has at most 107 bytes."""


class DemoFailure(Exception):
    """The demo cannot go on; the text says why and what to do."""


class Workspace:
    """`folder` holds everything, secrets too, and is removed; `logs` holds none, and is kept when the demo failed."""

    def __init__(self) -> None:
        usual = tempfile.gettempdir()
        self.folder = Path(
            tempfile.mkdtemp(prefix="rackwright-demo-", dir=usual if len(usual) < _LONGEST_PATH else "/tmp")
        )
        self.logs = self.folder / "logs"
        self.secrets = self.folder / "secrets"
        for part in (self.logs, self.secrets):
            part.mkdir(mode=0o700)
        self.address = f"127.{random.randint(16, 250)}.{random.randint(1, 254)}.{random.randint(2, 254)}"

    def secret_file(self, name: str, text: str) -> Path:
        """A file that only this user can read, from its first moment on."""
        file = self.secrets / name
        file.touch(mode=0o600)
        file.write_text(text)
        return file

    def make_folder(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir(mode=0o700)
        return made

    def free_port(self, preferred: int = 0, kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
        """A port of this run's address that nobody has; the preferred one where that is free."""
        for port in (preferred, 0):
            with socket.socket(socket.AF_INET, kind) as probe:
                try:
                    probe.bind((self.address, port))
                except OSError:
                    continue
                return int(probe.getsockname()[1])
        raise DemoFailure(f"no port of {self.address} can be bound: is the loopback interface up?")

    def remove(self, *, keep_logs: bool) -> Path | None:
        """Removes everything. With `keep_logs` the logs stay, and their folder is returned."""
        if not keep_logs:
            shutil.rmtree(self.folder)
            return None
        for part in self.folder.iterdir():
            if part == self.logs:
                continue
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            else:
                part.unlink()
        return self.logs
