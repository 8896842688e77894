"""The boot override of a system, and where it is set: on the system, or on its settings object.

Some services keep the override in the settings object only (`…/SD` of AMI, `…/Settings` of NVIDIA's
OpenBMC); they refuse it on the system. Which one it is, the recorded tree says: a settings object
whose Boot holds BootSourceOverrideTarget owns the override.
"""

from typing import Any

from simulators.redfish.documents import Answer, JsonObject, linked_path, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    property_not_writable,
    property_value_not_in_list,
    property_value_type,
)
from simulators.redfish.history import Boot
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.properties import annotated, split_patch
from simulators.redfish.routes import Call, Routes

OVERRIDE_KEYS = frozenset(
    {
        "BootSourceOverrideEnabled",
        "BootSourceOverrideTarget",
        "BootSourceOverrideMode",
        "UefiTargetBootSourceOverride",
        "BootNext",
        "HttpBootUri",
    }
)
CHOICES = ("BootSourceOverrideEnabled", "BootSourceOverrideTarget", "BootSourceOverrideMode")


class BootOverride:
    """Sets, shows and uses up the boot override."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        machine.at_host_start.append(self.host_starts)

    def register(self, routes: Routes) -> None:
        routes.patches["ComputerSystem"] = self.patch_system

    def patch_system(self, call: Call) -> Answer:
        """PATCH of a system or of its settings object."""
        document, body = call.document, dict(call.body)
        owner = self._system_of_settings(call.path)
        changes = body.get("Boot")
        if changes is not None and not isinstance(changes, dict):
            raise RedfishError(400, property_value_type("Boot", changes))
        if changes:
            boot = document.get("Boot")
            if not isinstance(boot, dict):
                raise RedfishError(400, property_not_writable("Boot"))
            self._refuse_elsewhere(call.path, owner, boot, changes)
            self._check_values(owner or call.path, changes)
        accepted, messages = split_patch(document, body, "ComputerSystem")
        if isinstance(accepted.get("Boot"), dict):
            accepted["Boot"] = settle_override(document["Boot"], accepted["Boot"])
        changed = self.machine.store.edit(call.path, lambda target: merge_properties(target, accepted))
        return Answer.of(200, annotated(changed, messages))

    def override(self, system: str) -> JsonObject:
        """The override as it stands for the next start, from whichever resource owns it."""
        boot = self.machine.property(self._override_owner(system), "Boot")
        return {key: boot[key] for key in sorted(OVERRIDE_KEYS) if key in boot} if isinstance(boot, dict) else {}

    def host_starts(self, system: str) -> None:
        """Records what the host boots from, and uses up an override that holds once."""
        owner = self._override_owner(system)
        boot: JsonObject = self.machine.property(owner, "Boot") or {}
        enabled = str(boot.get("BootSourceOverrideEnabled") or "Disabled")
        target = str(boot.get("BootSourceOverrideTarget") or "None")
        active = enabled != "Disabled"
        self.machine.history.boots.append(
            Boot(
                system=system,
                target=target if active else "None",
                mode=boot.get("BootSourceOverrideMode"),
                enabled=enabled,
                uefi_target=boot.get("UefiTargetBootSourceOverride") if active else None,
                http_uri=boot.get("HttpBootUri") if active else None,
                media=self._inserted_images(),
                at=self.machine.timeline.clock(),
            )
        )
        pending = {key: boot[key] for key in CHOICES if key in boot} if owner != system else {}
        if enabled == "Once":
            used_up = {"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}
            self._show(owner, used_up)
            pending.update(used_up)
        if pending and owner != system:
            self._show(system, pending)

    def _show(self, path: str, values: JsonObject) -> None:
        boot = self.machine.property(path, "Boot")
        if not isinstance(boot, dict):
            return
        changes = {key: value for key, value in values.items() if key in boot and boot[key] != value}
        if changes:
            self.machine.store.edit(path, lambda document: document["Boot"].update(changes))

    def _inserted_images(self) -> dict[str, str]:
        return {
            resource.path: str(resource.document.get("Image"))
            for resource in self.machine.store.of_schema("VirtualMedia")
            if resource.document and resource.document.get("Inserted") and resource.document.get("Image")
        }

    def _settings_of(self, system: str) -> str | None:
        return linked_path(self.machine.store.document(system), "@Redfish.Settings", "SettingsObject")

    def _system_of_settings(self, path: str) -> str | None:
        """The system whose settings object is at `path`, or None where `path` is a system itself."""
        for system in self.machine.systems():
            settings = self._settings_of(system)
            if settings and path_key(settings) == path_key(path):
                return system
        return None

    def _override_owner(self, system: str) -> str:
        settings = self._settings_of(system)
        boot = self.machine.property(settings, "Boot") if settings else None
        return settings if settings and isinstance(boot, dict) and "BootSourceOverrideTarget" in boot else system

    def _refuse_elsewhere(self, path: str, owner: str | None, boot: JsonObject, changes: JsonObject) -> None:
        """400 for keys that this resource does not own; the message names the resource that does."""
        if owner is not None:
            refused = [key for key in changes if key not in boot]
            hint = f"Send it to {owner}."
        else:
            settings = self._settings_of(path)
            settings_boot: Any = self.machine.property(settings, "Boot") if settings else None
            owned: set[str] = set()
            if isinstance(settings_boot, dict):
                owned = set(OVERRIDE_KEYS) if "BootSourceOverrideTarget" in settings_boot else set()
                owned |= {"BootOrder"} & settings_boot.keys()
            refused = [key for key in changes if key in owned]
            hint = f"Send it to the settings object {settings}."
        if refused:
            raise RedfishError(400, [property_not_writable(f"Boot/{key}", hint) for key in refused])

    def _check_values(self, system: str, changes: JsonObject) -> None:
        boot: JsonObject = self.machine.property(system, "Boot") or {}
        settings = self._settings_of(system)
        settings_boot: JsonObject = (self.machine.property(settings, "Boot") if settings else None) or {}
        faults: list[Message] = []
        for key in CHOICES:
            if key not in changes:
                continue
            allowed = boot.get(f"{key}@Redfish.AllowableValues") or settings_boot.get(
                f"{key}@Redfish.AllowableValues"
            )
            if changes[key] is None or not isinstance(changes[key], str):
                faults.append(property_value_type(f"Boot/{key}", changes[key]))
            elif isinstance(allowed, list) and changes[key] not in [*allowed, *always_allowed(key)]:
                faults.append(property_value_not_in_list(f"Boot/{key}", changes[key], allowed))
        order = changes.get("BootOrder")
        known = boot.get("BootOrder") or settings_boot.get("BootOrder")
        if isinstance(order, list) and isinstance(known, list):
            unknown = [entry for entry in order if entry not in known]
            faults += [property_value_not_in_list("Boot/BootOrder", entry, known) for entry in unknown]
        if faults:
            raise RedfishError(400, faults)


def always_allowed(key: str) -> tuple[str, ...]:
    """Values that mean "no override", which services take whether or not they list them."""
    return {"BootSourceOverrideTarget": ("None",), "BootSourceOverrideEnabled": ("Disabled",)}.get(key, ())


def settle_override(boot: JsonObject, changes: JsonObject) -> JsonObject:
    """Keeps Enabled and Target consistent: no target without an override, no override without a target."""
    settled = dict(changes)
    if settled.get("BootSourceOverrideEnabled") == "Disabled" and "BootSourceOverrideTarget" in boot:
        settled.setdefault("BootSourceOverrideTarget", "None")
    if settled.get("BootSourceOverrideTarget") == "None" and "BootSourceOverrideEnabled" in boot:
        settled["BootSourceOverrideEnabled"] = "Disabled"
    return settled
