"""Opens the console on a BMC's command line: waits for its prompt, types the commands, and looks what came of it.

Pure of SSH: it speaks to anything that reads and writes bytes.
"""

import asyncio
import re
from typing import Final, Protocol

from drivers.ssh.shells import Shell, last_line, shell_at
from protocol.errors import BmcMessage, ErrorCode, OperationError

__all__ = ["Talker", "enter_console"]

_PROMPT_SECONDS: Final = 20.0
"""An iLO greets some seconds after the login."""
_QUIET_SECONDS: Final = 2.0
"""A command line that refuses does so at once: after so long without its prompt, the console is open."""
_STARTED_SECONDS: Final = 15.0
_MOST_TEXT: Final = 65_536
_MOST_LOOKED_AT: Final = 4_096
_MOST_QUOTED: Final = 300


class Talker(Protocol):
    """The BMC's command line."""

    async def read(self) -> bytes:
        """The next bytes; empty when it has hung up."""

    async def write(self, data: bytes) -> None: ...


async def enter_console(talker: Talker, endpoint: str, *, take_over: bool) -> tuple[Shell, bytes]:
    """Opens the console: the command line's kind, and what the machine has written so far.

    Raises OperationError: UNSUPPORTED (a command line of an unknown kind, or without a console), CONFLICT (another
    session has the console), UNREACHABLE (it hung up), each with its own words.
    """
    listener = _Listener(talker, endpoint)
    shell = await listener.await_prompt()
    if take_over and shell.release:
        await _release(listener, shell)
    said = await listener.say(shell, shell.enter)
    if said.unknown and shell.other_enter:
        said = await listener.say(shell, shell.other_enter)
    if said.held and not take_over:
        raise OperationError(
            ErrorCode.CONFLICT,
            f"another session holds the serial console of {endpoint}: close it there, or take it over (takeOver, "
            "--take-over)",
            bmc=_words(said.text),
        )
    if said.output is None:
        raise OperationError(
            ErrorCode.CONFLICT if said.held else ErrorCode.UNSUPPORTED,
            f"{endpoint} ({shell.who}) did not open its console by {' and '.join(shell.enter)!r}",
            bmc=_words(said.text),
        )
    return shell, said.output


async def _release(listener: "_Listener", shell: Shell) -> None:
    """Ends another session's console; that there is none is no fault."""
    said = await listener.say(shell, shell.release, back=True)
    if said.unknown and shell.other_release:
        await listener.say(shell, shell.other_release, back=True)


class _Said:
    """What a command line answered. `output` is the machine's, None where the console did not open."""

    def __init__(self, shell: Shell, text: str, output: bytes | None) -> None:
        self.text = text
        self.output = output
        refused = output is None
        self.held = refused and re.search(shell.held, text, re.IGNORECASE) is not None
        self.unknown = refused and re.search(shell.unknown, text, re.IGNORECASE) is not None


class _Listener:
    def __init__(self, talker: Talker, endpoint: str) -> None:
        self._talker = talker
        self._endpoint = endpoint
        self._heard = bytearray()
        self._prompt = ""

    async def await_prompt(self) -> Shell:
        """The kind of the command line that shows its prompt."""
        try:
            async with asyncio.timeout(_PROMPT_SECONDS):
                while True:
                    if await self._is_quiet(0.3) and (shell := shell_at(self._text)) is not None:
                        self._prompt = last_line(self._text)
                        return shell
        except TimeoutError:
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                f"the command line of {self._endpoint} is of no kind that is known here: name the command that opens "
                "its console (command=…)",
                bmc=_words(self._text),
            ) from None

    async def say(self, shell: Shell, commands: tuple[str, ...], *, back: bool = False) -> _Said:
        """Types commands one after the other, each once the prompt is there again after the one before; what the last
        one brought. `back`: the last one too is to end at the prompt."""
        for number, command in enumerate(commands, 1):
            self._heard.clear()
            await self._talker.write(command.encode() + b"\r")
            if number < len(commands) or back:
                await self._hear_prompt(shell)
        return _Said(shell, self._text, None) if back else await self._hear_start(shell)

    async def _hear_prompt(self, shell: Shell) -> None:
        try:
            async with asyncio.timeout(_STARTED_SECONDS):
                while not (await self._is_quiet(0.2) and shell_at(self._text) is shell):
                    continue
        except TimeoutError:
            raise OperationError(
                ErrorCode.TIMEOUT,
                f"{self._endpoint} ({shell.who}) did not come back to its prompt",
                bmc=_words(self._text),
            ) from None

    async def _hear_start(self, shell: Shell) -> _Said:
        """Until the console has started, the command line has refused it, or nothing else happens."""
        deadline = asyncio.get_running_loop().time() + (_QUIET_SECONDS if shell.started is None else _STARTED_SECONDS)
        while (remaining := deadline - asyncio.get_running_loop().time()) > 0:
            quiet = await self._is_quiet(min(0.3, remaining))
            if shell.started is not None:
                found = re.search(shell.started.encode(), bytes(self._heard), re.IGNORECASE)
                if found is not None:
                    return _Said(shell, self._text, bytes(self._heard[found.end() :]))
            # The very prompt: a machine's console may show one that only looks like it.
            if quiet and b"\n" in self._heard and last_line(self._text) == self._prompt:
                return _Said(shell, self._text, None)
        return _Said(shell, self._text, _after_echo(bytes(self._heard)) if shell.started is None else None)

    async def _is_quiet(self, seconds: float) -> bool:
        """Hears on; True when nothing came for so long."""
        try:
            async with asyncio.timeout(seconds):
                data = await self._talker.read()
        except TimeoutError:
            return True
        if not data:
            raise OperationError(
                ErrorCode.UNREACHABLE, f"{self._endpoint} hung up before its console was open", bmc=_words(self._text)
            )
        self._heard += data
        del self._heard[:-_MOST_TEXT]
        return False

    @property
    def _text(self) -> str:
        """The end of what was heard, where prompts and refusals are; more would only be work for the patterns."""
        return self._heard[-_MOST_LOOKED_AT:].decode(errors="replace")


def _after_echo(heard: bytes) -> bytes:
    """What follows the line that repeats the command."""
    return heard.partition(b"\n")[2]


def _words(text: str) -> list[BmcMessage]:
    """The end of what it said, on one line."""
    said = " ".join(re.sub(r"[^\x20-\x7e]+", " ", text).split())
    return [BmcMessage("", said[-_MOST_QUOTED:])] if said else []
