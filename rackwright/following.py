"""A command from its asking to its end, whatever becomes of the control plane meanwhile.

It is asked for once: a request whose answer was lost is sent again under the same key, and gives the same command.
From then on it is only looked at, by its id.
"""

import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import click

from protocol.commands import TERMINAL
from protocol.durations import span_words
from protocol.errors import RequestCode, RequestError
from rackwright.client import Client, NoAnswer
from rackwright.command_news import news_of
from rackwright.terminal import NewsLine

__all__ = ["ask", "follow_command"]

_LOOK_MS = 1_000
"""How long the control plane holds a look that has nothing new to tell."""
_AGAIN_SECONDS = 1.0
_ASK_SECONDS = 300.0
"""How long a request without an answer is repeated."""
_GRACE_SECONDS = 600.0
"""How long past the command's own time an absent control plane is waited for."""
_ENDED = {state.value for state in TERMINAL}

Sleep = Callable[[float], None]
Clock = Callable[[], float]


def ask(
    client: Client, request: Mapping[str, Any], *, sleep: Sleep = time.sleep, clock: Clock = time.monotonic
) -> dict[str, Any]:
    """The command as it was recorded, at once: whoever interrupts the waiting for its end must know its id.

    `request` has a key. Raises RequestError, also where a request that may have arrived got no answer for long.
    """
    line, began, lost = NewsLine(sys.stderr), clock(), False
    try:
        while True:
            try:
                command = client.call("drivers", "invoke", {**request, "waitMs": 0})
            except RequestError as error:
                lost = lost or isinstance(error, NoAnswer)
                away = error.code is RequestCode.UNAVAILABLE
                if not (lost and away) or clock() - began > _ASK_SECONDS:
                    raise
                line.tell(f"no answer, asked again as the same command: {error.message}")
                sleep(_AGAIN_SECONDS)
            else:
                line.end("it was taken")
                return command
    except (KeyboardInterrupt, RequestError) as error:
        if lost or isinstance(error, KeyboardInterrupt):
            line.end("not asked any longer")
            click.echo(f"it may have been taken: repeated with --key {request['key']} it is the same one", err=True)
        raise


def follow_command(
    client: Client, command: dict[str, Any], *, sleep: Sleep = time.sleep, clock: Clock = time.monotonic
) -> dict[str, Any]:
    """The command once it has ended; what is known of it is told on standard error meanwhile.

    A control plane that is away is waited for. An interrupt or a refusal leaves the command going on, and says so.
    """
    line, began = NewsLine(sys.stderr), clock()
    patience = _seconds_left(command) + _GRACE_SECONDS
    try:
        while command["state"] not in _ENDED:
            try:
                command = client.call("commands", "get", {"commandId": command["id"], "waitMs": _LOOK_MS})
            except RequestError as error:
                if error.code is not RequestCode.UNAVAILABLE or clock() - began > patience:
                    raise
                line.tell(f"the control plane is away, the command goes on, and is looked at again: {error.message}")
                sleep(_AGAIN_SECONDS)
                continue
            if command["state"] not in _ENDED:
                line.tell(news_of(command), span_words(int((clock() - began) * 1000)))
    except (KeyboardInterrupt, RequestError):
        line.end("not waited for any longer")
        click.echo(f"the command goes on: rackwright commands watch {command['id']}", err=True)
        raise
    line.end(f"{command['state']} after {span_words(int((clock() - began) * 1000))}")
    return command


def _seconds_left(command: Mapping[str, Any]) -> float:
    """How long it may take in all; by the control plane's clock alone, which need not be this host's."""
    created, last = (datetime.fromisoformat(command[name]) for name in ("createdAt", "notAfter"))
    return max(0.0, (last - created).total_seconds())
