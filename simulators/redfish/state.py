"""What a test asks of, and does to, a simulated machine from outside: as a person who stands before it."""

from collections.abc import Callable

import msgspec

from simulators.redfish.documents import JsonObject, Upload
from simulators.redfish.history import Boot, Reset
from simulators.redfish.machine import merge_properties
from simulators.redfish.power import PowerState
from simulators.redfish.service import RedfishService


class Media(msgspec.Struct, frozen=True):
    """One virtual media slot as it is now."""

    path: str
    image: str | None
    inserted: bool
    write_protected: bool | None


class MachineState:
    """Reads and sets the state of one machine. Times that have passed are taken into account first."""

    def __init__(self, service: RedfishService) -> None:
        self.service = service

    @property
    def systems(self) -> list[str]:
        return self.service.machine.systems()

    def power(self, system: str | None = None) -> PowerState:
        """The power state of a system; of the first one where none is named."""
        self.service.timeline.advance()
        return self.service.power.state(system or self.systems[0])

    def set_power(self, state: PowerState | str, system: str | None = None) -> None:
        """Sets the power as a hand on the machine would: at once, and in no journal."""
        self.service.power.set_state(system or self.systems[0], PowerState(state))

    def set_health(self, health: str, system: str | None = None) -> None:
        """Sets a system's health and rollup (OK, Warning, Critical), as a part that fails or is mended would."""
        path = system or self.systems[0]
        self.patch(path, {"Status": {"Health": health, "HealthRollup": health}})
        self.service.machine.emit(f"Health{health}", path, f"The health is now {health}.")

    @property
    def resets(self) -> list[Reset]:
        """Resets that were carried out, in order."""
        return list(self.service.machine.history.resets)

    @property
    def manager_resets(self) -> list[Reset]:
        return list(self.service.machine.history.manager_resets)

    @property
    def boots(self) -> list[Boot]:
        """Starts of the host, in order, each with what it booted from."""
        self.service.timeline.advance()
        return list(self.service.machine.history.boots)

    def boot_override(self, system: str | None = None) -> JsonObject:
        """The override that the next start will use."""
        self.service.timeline.advance()
        return self.service.boot.override(system or self.systems[0])

    @property
    def uploads(self) -> list[Upload]:
        """The images that were pushed, in order."""
        return list(self.service.update.uploads)

    @property
    def media(self) -> dict[str, Media]:
        """All virtual media slots by path."""
        slots: dict[str, Media] = {}
        for resource in self.service.store.of_schema("VirtualMedia"):
            document = resource.document or {}
            slots[resource.path] = Media(
                resource.path,
                document.get("Image") or None,
                bool(document.get("Inserted")),
                document.get("WriteProtected"),
            )
        return slots

    @property
    def open_sessions(self) -> list[str]:
        """The paths of the sessions that are open now."""
        return [session.path for session in self.service.sessions.open]

    @property
    def sessions_created(self) -> int:
        return self.service.sessions.created

    def document(self, path: str) -> JsonObject | None:
        """The resource at `path` as a client would read it now, or None. Do not change it; see `patch`."""
        self.service.timeline.advance()
        return self.service.store.document(path)

    def patch(self, path: str, changes: JsonObject) -> None:
        """Merges values into a resource, read-only ones too. LookupError where there is none."""
        self.service.store.edit(path, lambda document: merge_properties(document, changes))

    def edit(self, path: str, change: Callable[[JsonObject], None]) -> None:
        """Changes a resource freely: `change` gets a private copy of its document."""
        self.service.store.edit(path, change)

    def put(self, path: str, document: JsonObject) -> None:
        """Adds or replaces a resource."""
        self.service.store.put(path, document)

    def remove(self, path: str) -> None:
        """Takes a resource away: it answers 404 from now on."""
        self.service.store.remove(path)

    def set_password(self, user: str, password: str) -> None:
        """Rotates a password behind every client's back; open sessions stay open. KeyError for an unknown user."""
        self.service.accounts.logins[user].password = password

    def end_sessions(self) -> None:
        """Ends all sessions, as a restart of the manager does."""
        self.service.sessions.end_all()

    def is_locked(self, user: str) -> bool:
        """Whether failed logins have locked the account."""
        return self.service.accounts.locked(user)
