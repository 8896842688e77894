"""The engine's timing constants, named as the specification names them (milliseconds)."""

import zlib

import msgspec

__all__ = ["MAX_STEPS", "SHARDS", "Timing", "shard_of"]

MAX_STEPS = 512
"""Steps of a workflow over all phases."""
SHARDS = 32
"""A fixed number: it is part of the stored rows."""


def shard_of(key: str) -> int:
    """The shard of a node id, or of a workflow id where there is no node; the same in every process and version."""
    return zlib.crc32(key.encode()) % SHARDS


class Timing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tests make it shorter; nobody else has a reason to."""

    workflow_poll_ms: int = 10_000
    """A waiting step is looked at this often, and at its deadline at the latest."""
    command_step_poll_ms: int = 2_000
    """A step that awaits a command is run again this often."""
    step_not_ready_ms: int = 5_000
    """A step that is not ready is run again after this, unless it says otherwise."""
    driver_operation_timeout_ms: int = 600_000
    step_timeout_ms: int = 600_000
    cancel_grace_ms: int = 60_000
    """How long an aborted workflow waits for its agent's word that the command under way has ended."""
    stuck_after_ms: int = 300_000
    failed_window_ms: int = 86_400_000
