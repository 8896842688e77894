"""A new certificate at half the old one's life, asked for over the link, with a new key each time."""

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import structlog

from agent.errors import IdentityError
from agent.identity import Identity, IdentityStore, certificate_request
from agent.session import Session
from protocol.frames import AgentFrame, CertificateIssued, CertificateRequest

__all__ = ["Renewal"]

_log = structlog.get_logger("agent.renewal")
_LONGEST_SLEEP = 3600.0
_ANSWER_TIMEOUT = 120.0


class Renewal:
    """Watches one session at a time. A request whose answer was lost is made again, with another key."""

    RECONNECT: ClassVar = "reconnecting with the renewed certificate"

    def __init__(self, store: IdentityStore, say: Callable[[AgentFrame], None], chance: random.Random) -> None:
        self._store = store
        self._say = say
        self._jitter = chance.random()
        self._issued: asyncio.Future[CertificateIssued] | None = None
        self._not_before = 0.0

    def issued(self, frame: CertificateIssued) -> None:
        """The control plane's answer; one that nobody waits for is left aside."""
        if self._issued is not None and not self._issued.done():
            self._issued.set_result(frame)

    async def watch(self, identity: Identity, session: Session) -> None:
        """Renews when it is time, then ends the session so that the new pair is proven by connecting."""
        while True:
            # At most once in a while, also over connections: a renewed pair may be refused each time.
            held_off = self._not_before - asyncio.get_running_loop().time()
            wait = max(identity.validity.renew_at(self._jitter) - time.time(), held_off)
            if wait > 0:
                # By the wall clock, as certificates are; looked at again each hour, should the clock be set.
                await asyncio.sleep(min(wait, _LONGEST_SLEEP))
                continue
            self._not_before = asyncio.get_running_loop().time() + self._spacing(identity)
            try:
                await self._renew(identity)
            except (IdentityError, OSError, TimeoutError) as error:
                _log.error("certificate_not_renewed", reason=str(error) or "the control plane did not answer")
                continue
            await session.end(self.RECONNECT)
            return

    def _spacing(self, identity: Identity) -> float:
        """Seconds between two attempts: an hour or less, and many of them within what is left of the life."""
        life = identity.validity.ends - identity.validity.begins
        return min(_LONGEST_SLEEP, life / 40) * (0.5 + self._jitter / 2)

    async def _renew(self, identity: Identity) -> None:
        folder, key = self._store.begin()
        try:
            self._issued = asyncio.get_running_loop().create_future()
            self._say(CertificateRequest(csr=certificate_request(key, os.uname().nodename)))
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                issued = await self._issued
            self._store.complete(folder, identity.facts, issued.certificate, issued.ca, renewal=True)
        except BaseException:
            _remove(folder)
            raise
        finally:
            self._issued = None


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
