"""A BMC's SSH server that is not there: its login, a command line as its vendor's looks, a console that echoes."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)
from paramiko.server import InteractiveQuery

from drivers.ssh.trust import fingerprint

USER, PASSWORD = "admin", "Pl4nted-Secret"


@dataclass
class CommandLine:
    """How a vendor's command line looks: `answers` gives what it writes to a command; `opens` begin the console."""

    greeting: str
    prompt: str
    opens: dict[str, str] = field(default_factory=dict)
    """The command that opens the console, and what is written then."""
    answers: dict[str, str] = field(default_factory=dict)
    otherwise: str = "unknown command"
    leave: bytes = b""
    """The keys that end the console."""


class _Server(paramiko.ServerInterface):
    def __init__(self, bmc: "VendorBmc") -> None:
        self._bmc = bmc
        self.ready = threading.Event()
        self.command: bytes | None = None

    def get_allowed_auths(self, username: str) -> str:
        return self._bmc.methods

    def check_auth_password(self, username: str, password: str) -> int:
        if "password" not in self._bmc.methods:
            return AUTH_FAILED
        self._bmc.logins.append((username, "password"))
        good = (username, password) == (USER, self._bmc.password)
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> "int | InteractiveQuery":
        if "keyboard-interactive" not in self._bmc.methods:
            return AUTH_FAILED
        query = InteractiveQuery()
        query.add_prompt("Password: ", False)
        return query

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self._bmc.logins.append((USER, "keyboard-interactive"))
        return AUTH_SUCCESSFUL if responses == [self._bmc.password] else AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._bmc.logins.append((username, "publickey"))
        good = key.asbytes() in self._bmc.user_keys
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED if kind == "session" else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_pty_request(self, *_: object) -> bool:
        return self._bmc.gives_terminal

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        self.ready.set()
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.command = command
        self.ready.set()
        return True


class VendorBmc:
    """`with VendorBmc(line) as bmc:`; every connection has a thread. `typed` keeps what reached the console."""

    def __init__(self, line: CommandLine | None = None, *, straight: bool = False) -> None:
        self.line = line
        self.straight = straight
        self.password = PASSWORD
        self.methods = "password,publickey"
        self.user_keys: list[bytes] = []
        self.gives_terminal = True
        self.logins: list[tuple[str, str]] = []
        self.commands: list[str] = []
        self.typed = bytearray()
        self.left = threading.Event()
        """Set when a console was left by its keys."""
        self.key: paramiko.PKey = paramiko.ECDSAKey.generate()
        self.held = False
        self.on_command: Callable[[str], str | None] = lambda _command: None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._transports: list[paramiko.Transport] = []
        self._thread = threading.Thread(target=self._accept, name="vendor bmc", daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        return f"ssh://127.0.0.1:{self.port}"

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key.asbytes())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join(10)

    def cut(self) -> None:
        """Every connection breaks, without a word."""
        for transport in self._transports:
            transport.sock.close()
            transport.close()

    @property
    def met(self) -> int:
        """How many connections there have been."""
        return len(self._transports)

    @property
    def connections(self) -> int:
        return sum(transport.is_active() for transport in self._transports)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        transport = paramiko.Transport(connected)
        self._transports.append(transport)
        transport.add_server_key(self.key)
        server = _Server(self)
        try:
            transport.start_server(server=server)
            channel = transport.accept(20)
            if channel is None or not server.ready.wait(20):
                return
            if server.command is not None:
                self.commands.append(server.command.decode())
                self._console(channel, b"")
            elif self.straight:
                self._console(channel, b"")
            else:
                self._talk(channel)
            channel.close()
        except (paramiko.SSHException, OSError, EOFError):
            return

    def _talk(self, channel: paramiko.Channel) -> None:
        line = self.line
        assert line is not None
        channel.sendall(f"{line.greeting}\r\n{line.prompt}".encode())
        typed = b""
        while data := channel.recv(1000):
            typed += data
            while b"\r" in typed:
                command, _, typed = typed.partition(b"\r")
                text = command.decode().strip()
                channel.sendall(command + b"\r\n")
                self.commands.append(text)
                answer = self.on_command(text) or line.answers.get(text)
                if answer is None and text in line.opens:
                    channel.sendall(line.opens[text].encode())
                    if not self._console(channel, line.leave):
                        return
                    answer = ""
                channel.sendall(f"{line.otherwise if answer is None else answer}\r\n{line.prompt}".encode())

    def _console(self, channel: paramiko.Channel, leave: bytes) -> bool:
        """Echoes until it is left; False when the connection has ended."""
        typed = b""
        while data := channel.recv(1000):
            self.typed += data
            typed += data
            if leave and leave in typed:
                self.left.set()
                return True
            channel.sendall(data)
        return False
