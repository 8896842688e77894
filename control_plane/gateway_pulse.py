"""The gateways' pulse: each worker says in the database that it lives, and closes what a dead one left open there.

An agent whose worker died connects to another one within seconds, and its old session is superseded. Where the agent
is gone too, nobody would ever say so, and it would be shown as connected for good.
"""

import asyncio
import logging

from control_plane.sessions import close_silent_sessions, note_gateway
from control_plane.store import Store, StoreError, Transaction

__all__ = ["BEAT_SECONDS", "SILENT_SECONDS", "GatewayPulse"]

BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0
_log = logging.getLogger("control_plane.gateway_pulse")


class GatewayPulse:
    """Runs beside the gateway of a worker."""

    def __init__(
        self, store: Store, worker: str, *, beat_seconds: float = BEAT_SECONDS, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self._store = store
        self._worker = worker
        self._beat_seconds = beat_seconds
        self._silent_seconds = silent_seconds

    async def run(self) -> None:
        """For ever. After a time without the database others are given the time to show that they live."""
        loop = asyncio.get_running_loop()
        unbroken_since = loop.time()
        while True:
            patient = loop.time() - unbroken_since < self._silent_seconds
            try:
                closed = await self._store.write(self._beat, patient)
            except StoreError as error:
                _log.warning("this worker could not say that it lives: %s", error)
                unbroken_since = loop.time()
            else:
                if closed:
                    _log.warning("%d connections were closed whose worker fell silent", closed)
            await asyncio.sleep(self._beat_seconds)

    def _beat(self, tx: Transaction, patient: bool) -> int:
        note_gateway(tx, self._worker)
        return 0 if patient else close_silent_sessions(tx, round(self._silent_seconds * 1_000))
