"""Logs to stderr: JSON lines for journald, or coloured lines for a person. No secret passes.

The rooms log through `logging`; structlog formats. A value of the type `Secret` shows as stars by itself; texts that
look like one of our own tokens, or like a password inside a URL, are stricken out at the last line.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from protocol.secret import Secret

__all__ = ["configure", "scrub"]

_TOKENS = re.compile(r"\b(rwt_[0-9a-z]{26}_|rwj1\.[0-9a-f]{64}\.jtk_[0-9a-z]{26}\.)[A-Za-z0-9_-]+")
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@")


def configure(level: str, style: str) -> None:
    """Sets up the process's logging. `style`: json, console, or auto (console on a terminal)."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _strike_out,
    ]
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.EventRenamer("message"), _as_json()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Scrubbed(formatter))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def scrub(text: str) -> str:
    """The text without our tokens' secrets and without passwords in URLs."""
    return _URL_PASSWORD.sub(r"\1***@", _TOKENS.sub(r"\1***", text))


class _Scrubbed(logging.Formatter):
    """The last line of defence: what reaches the stream has been scrubbed, tracebacks included."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return scrub(self._inner.format(record))


def _strike_out(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, Secret):
            event[key] = "***"
    return event


def _as_json() -> Any:
    return structlog.processors.JSONRenderer(default=str)
