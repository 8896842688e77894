"""Logs: one JSON object a line on standard error, where systemd's journal takes them. No secret passes.

Three nets, each for what the one before lets through: a `Secret` renders as ***; fields whose names sound secret are
masked; and the finished line is searched for every password that the vault gave out, as it is, as JSON writes it, and
as HTTP Basic carries it. What counts there is the rule of `drivers/masking.py`.
"""

import base64
import json
import logging
import re
import sys
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec
import structlog

from drivers.masking import MASK, is_a_word, masked
from protocol.commands import Ending
from protocol.errors import Failure
from protocol.secret import Secret

__all__ = ["Lines", "Scrubber", "set_up"]

_SECRET_NAME = re.compile(r"passw|secret|token|authoriz|cookie|private|credential$|^key$", re.IGNORECASE)
_SHAPES = (
    re.compile(r"rwj1\.[0-9a-f]{64}\.[A-Za-z0-9_.-]+"),
    re.compile(r"(?i)(?<=basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=://)[^/\s:@\"']+:[^/\s@\"']+(?=@)"),
    # The path of a machine's boot medium, in JSON too: whoever knows it can fetch the machine's ticket.
    re.compile(r"(?<=/)[0-9a-f]{40}(?=[/\\])"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL),
)
_KEPT_LINES = 2_000


class Scrubber:
    """Takes known secrets out of text. What it was told stays in this process' memory only."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._search: re.Pattern[str] | None = None
        self._words: set[str] = set()
        """Secrets that are words besides: they are taken out where they stand as a value."""

    def learn(self, secret: Secret) -> None:
        """Every form in which this secret could reach a text."""
        value = secret.reveal()
        if not value or value in self._known:
            return
        if is_a_word(value):
            self._words.add(value)
            return
        for ascii_only in (True, False):
            form = value
            # A BMC's answer is JSON, quoted in an error, which is JSON again in the log.
            for _ in range(4):
                self._known.add(form)
                form = json.dumps(form, ensure_ascii=ascii_only)[1:-1]
        self._known.add(base64.b64encode(value.encode()).decode().rstrip("="))
        self._search = re.compile("|".join(re.escape(form) for form in sorted(self._known, key=len, reverse=True)))

    def clean(self, text: str) -> str:
        for shape in _SHAPES:
            text = shape.sub(MASK, text)
        if self._search is not None:
            text = self._search.sub(MASK, text)
        return masked(text, *self._words)

    def clean_ending(self, ending: Ending) -> Ending:
        """An ending whose error repeats no secret: some BMCs echo what they were sent."""
        if ending.error is None:
            return ending
        said = msgspec.to_builtins(ending.error)
        cleaned = {name: value if name == "code" else self._cleaned(value) for name, value in said.items()}
        return ending if cleaned == said else msgspec.structs.replace(ending, error=msgspec.convert(cleaned, Failure))

    def _cleaned(self, value: Any) -> Any:
        """Every text in a JSON value, cleaned."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, list):
            return [self._cleaned(item) for item in value]
        if isinstance(value, dict):
            return {name: self._cleaned(item) for name, item in value.items()}
        return value


class Lines(logging.Handler):
    """Writes each finished line to standard error, and keeps the last ones for `agent.collectLogs`."""

    def __init__(self, scrubber: Scrubber, stream: Any = None) -> None:
        super().__init__()
        self._scrubber = scrubber
        self._stream = stream or sys.stderr
        self.kept: deque[str] = deque(maxlen=_KEPT_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._scrubber.clean(self.format(record))
            self.kept.append(line)
            self._stream.write(line + "\n")
            self._stream.flush()
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Says that a line was lost; the usual traceback would show its arguments."""
        self._stream.write(f'{{"level": "error", "event": "log_line_lost", "logger": "{record.name}"}}\n')


def set_up(level: str, form: str, scrubber: Scrubber, stream: Any = None) -> Lines:
    """Sends the logs of this process, ours and the libraries', through one chain. Returns where they end."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _mask_fields,
    ]
    last: Any = (
        structlog.processors.JSONRenderer(default=_plain)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    lines = Lines(scrubber, stream)
    # Tracebacks are rendered without the values of variables, which may be anything.
    renderers: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        renderers.append(structlog.processors.format_exc_info)
    lines.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*renderers, last]))
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(level.upper())
    # At debug, websockets logs every frame, and a join request is one.
    logging.getLogger("websockets").setLevel(max(logging.INFO, root.level))
    logging.getLogger("aiohttp").setLevel(max(logging.INFO, root.level))
    return lines


def _mask_fields(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: _masked(name, value) for name, value in event.items()}


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, Secret):
        return MASK
    if name not in ("event", "exc_info") and _SECRET_NAME.search(name) and not isinstance(value, (bool, int, float)):
        return MASK
    if isinstance(value, Mapping):
        return {key: _masked(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and name != "exc_info":
        return [_masked("", item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """A value that JSON has no form for."""
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else str(value)
