"""Licences that a BMC was found to lack: what it refused for want of one is not asked for again for a while."""

import asyncio

from drivers.redfish.failures import Refused
from drivers.redfish.messages import Note

__all__ = ["MissingLicences"]

_REMEMBERED_SECONDS = 600.0


class MissingLicences:
    """The requests that one BMC refused so. In the meantime the answer would stay the same (Supermicro, case B35)."""

    def __init__(self) -> None:
        self._refusals: dict[str, tuple[float, int, list[Note]]] = {}

    def note(self, method: str, path: str, refused: Refused) -> None:
        until = asyncio.get_running_loop().time() + _REMEMBERED_SECONDS
        self._refusals[f"{method} {path}"] = (until, refused.status, refused.notes)

    def refusal_of(self, method: str, path: str) -> Refused | None:
        """The refusal that the request would meet again; None where nothing is known of one."""
        if not self._refusals:
            return None
        about = f"{method} {path}"
        known = self._refusals.get(about)
        if known is None:
            return None
        until, status, notes = known
        if asyncio.get_running_loop().time() < until:
            return Refused.from_answer(status, notes, about)
        del self._refusals[about]
        return None
