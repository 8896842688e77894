"""Reading back: a BMC that says yes has not done it yet."""

import asyncio
from collections.abc import Awaitable, Callable

from drivers.driver import Call
from protocol.errors import ErrorCode, OperationError

__all__ = ["HOPELESS", "comes_true"]

_MARGIN = 0.25
HOPELESS = frozenset(
    {
        ErrorCode.AUTH_FAILED,
        ErrorCode.AUTH_BLOCKED,
        ErrorCode.TLS_UNTRUSTED,
        ErrorCode.LICENSE_REQUIRED,
        ErrorCode.UNSUPPORTED,
    }
)
"""Asking again gives the same."""


async def comes_true(question: Callable[[], Awaitable[bool]], call: Call, seconds: float) -> bool:
    """Asks until the answer is yes, for `seconds` at most and a little less than the operation's own time.

    A BMC that cannot answer for a moment has not said no. Raises OperationError where asking again cannot help.
    """
    clock = asyncio.get_running_loop().time
    until = min(clock() + seconds, call.deadline - _MARGIN)
    pause = 0.25
    while True:
        try:
            if await question():
                return True
        except OperationError as error:
            if error.code in HOPELESS:
                raise
        left = until - clock()
        if left <= 0:
            return False
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, 3.0)
