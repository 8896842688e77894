"""An operator at a console, from the first byte to the end: keys one way, output the other, wishes between them."""

import asyncio
import signal
import sys
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.errors import RackwrightError
from protocol.presentation import printable
from rackwright.escape_keys import HELP, EscapeKeys, Wish, escape_name
from rackwright.raw_terminal import Keyboard, Screen, ended_by_signals, raw

__all__ = ["Bytes", "Closed", "ConsoleEnd", "Far", "Note", "Notice", "run_console"]

_SIGNAL_EXIT: Final = 128


@dataclass(frozen=True, slots=True)
class Bytes:
    """What the machine wrote."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the operator is to know."""

    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The console is over; `error` is what the command fails with."""

    error: RackwrightError


Notice = Bytes | Note | Closed


class Far(Protocol):
    """The other end: a control plane's console, or a BMC's own."""

    async def next(self) -> Notice: ...

    async def type(self, keys: bytes) -> None:
        """Returns once they are taken. Keys that cannot be are dropped, and `next` tells why."""

    async def send_break(self) -> None: ...

    async def take_writer(self) -> None: ...


class ConsoleEnd(Exception):
    """The console ended by itself; `error` says why."""

    def __init__(self, error: RackwrightError) -> None:
        super().__init__(str(error))
        self.error = error


async def run_console(far: Far, *, title: str, escape: bytes | None, stay: float | None) -> int:
    """Until the operator ends it: the exit code. On a terminal the escape key does that; elsewhere, the input's end
    and `stay` seconds more (None: nothing does but a signal).

    Raises what the console failed with; KeyboardInterrupt where a signal ended it.
    """
    keys, output = sys.stdin.fileno(), sys.stdout.fileno()
    task = asyncio.current_task()
    assert task is not None
    with raw(keys) as is_raw, ended_by_signals(task) as signals:
        screen = Screen(output, is_raw=is_raw)
        session = _Session(far, screen, escape if is_raw else None)
        if is_raw and escape is not None:
            screen.say(f"[{title}: {escape_name(escape)} ? for help, {escape_name(escape)} . to end]")
        try:
            await session.run(Keyboard(keys), None if is_raw else stay, ends_with_input=is_raw)
        except asyncio.CancelledError:
            if not signals:
                raise
            task.uncancel()
            if is_raw or signals[0] != signal.SIGINT:
                return _SIGNAL_EXIT + signals[0]
            raise KeyboardInterrupt from None
        except ConsoleEnd as end:
            raise end.error from None
        except BrokenPipeError:
            return 0
        if is_raw:
            screen.say(f"[{title}: ended]")
        return 0


class _Session:
    def __init__(self, far: Far, screen: Screen, escape: bytes | None) -> None:
        self._far = far
        self._screen = screen
        self._escape = escape
        self._keys = EscapeKeys(escape)

    async def run(self, keyboard: Keyboard, stay: float | None, *, ends_with_input: bool) -> None:
        """Raises ConsoleEnd."""
        showing = asyncio.ensure_future(self._show())
        typing = asyncio.ensure_future(self._type(keyboard))
        try:
            await asyncio.wait((showing, typing), return_when=asyncio.FIRST_COMPLETED)
            if typing.done() and not showing.done():
                asked_to_end = typing.result()
                if not asked_to_end and not ends_with_input:
                    await asyncio.wait((showing,), timeout=stay)
            if showing.done():
                showing.result()
        finally:
            for task in (showing, typing):
                task.cancel()
            await asyncio.gather(showing, typing, return_exceptions=True)

    async def _show(self) -> None:
        while True:
            match await self._far.next():
                case Bytes(data):
                    await self._screen.show(data)
                case Note(text):
                    self._screen.say(f"[rackwright: {printable(text)}]")
                case Closed(error):
                    raise ConsoleEnd(error)

    async def _type(self, keyboard: Keyboard) -> bool:
        """True when the operator asked for the end, False at the end of the input."""
        async for piece in keyboard.pieces():
            for part in self._keys.feed(piece):
                if isinstance(part, bytes):
                    await self._far.type(part)
                elif part is Wish.END:
                    return True
                else:
                    await self._obey(part)
        return False

    async def _obey(self, wish: Wish) -> None:
        if wish is Wish.BREAK:
            await self._far.send_break()
        elif wish is Wish.TAKE:
            await self._far.take_writer()
        elif self._escape is not None:
            self._screen.say(HELP.format(escape=escape_name(self._escape)))
