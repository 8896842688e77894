"""One agent at a time on a state folder; a program that only looks can tell whether there is one."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from agent.errors import AgentError

__all__ = ["SNAPSHOT", "is_running", "only_one"]

SNAPSHOT = "status.json"
"""What the running process tells of itself."""
_LOCK = "agent.lock"


@contextlib.contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Holds the state folder for this process. Raises AgentError when another agent has it."""
    handle = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AgentError(
                f"another agent runs on {state} already: stop it first, or give this one a state_dir of its own"
            ) from None
        # What an earlier process left must not be taken for this one's word.
        (state / SNAPSHOT).unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def is_running(state: Path) -> bool:
    """Whether a process holds the folder now. Raises OSError where it cannot be seen."""
    try:
        handle = os.open(state / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
