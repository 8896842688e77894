"""The resources that hold a system's boot settings: the system, and its settings object where there is one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish.boot_override import ENABLED, MODE, TARGET, BootView
from drivers.redfish.document import Document, link, settings_path

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["BootPlaces", "read_boot", "read_boot_again"]


@dataclass(frozen=True)
class BootPlaces:
    """Both, as they were read; without a settings object its path is null."""

    system_path: str
    system: Document
    settings_path: str | None = None
    settings: Document | None = None

    @cached_property
    def view(self) -> BootView:
        return BootView.of(self.system, self.settings)

    @property
    def of_override(self) -> set[str]:
        """The paths of those that show the override."""
        keys = (ENABLED, TARGET, MODE)
        return {self.settings_path or "" if self.view.goes_to_settings(key) else self.system_path for key in keys}

    def known(self, path: str) -> Document | None:
        """What was read at the path; null for another place."""
        return {self.system_path: self.system, self.settings_path: self.settings}.get(path)


async def read_boot(connection: RedfishConnection, call: Call) -> BootPlaces:
    """Raises OperationError where the system cannot be read, or where its settings object stays busy."""
    service = connection.service
    system = await service.system(call)
    path = settings_path(system) or service.boot_settings_path
    # Where it is only busy, the override must not be taken for one that the system owns.
    settings = await connection.find_patiently(path, call)
    own = service.system_path or link(system) or ""
    return BootPlaces(own, system, path if settings is not None else None, settings)


async def read_boot_again(
    connection: RedfishConnection, before: BootPlaces, changed: Collection[str], call: Call
) -> BootPlaces:
    """The same after a change: only what was changed is read, the rest is as it was. Where it is not known what was
    changed, or where another place was, all is read."""
    known = {before.system_path, before.settings_path}
    if not changed or not known.issuperset(changed):
        return await read_boot(connection, call)
    now = before
    if before.system_path in changed:
        now = replace(now, system=await connection.service.system(call))
    if before.settings_path in changed and before.settings_path is not None:
        now = replace(now, settings=await connection.find_patiently(before.settings_path, call))
    return now
