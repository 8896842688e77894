"""BIOS attributes and secure boot: what is set now takes effect when the host starts next."""

from simulators.redfish.documents import Answer, JsonObject, linked_path, path_key
from simulators.redfish.errors import (
    RedfishError,
    action_parameter_missing,
    property_not_writable,
    property_unknown,
    property_value_not_in_list,
    property_value_type,
)
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.properties import annotated, split_patch, wrong_values
from simulators.redfish.routes import Call, Routes

PASSWORD_PARAMETERS = ("PasswordName", "OldPassword", "NewPassword")


class Bios:
    """Attributes through the settings object where the tree has one, else on the BIOS resource itself."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._pending: dict[str, JsonObject] = {}
        self._secure_boot: dict[str, bool] = {}
        machine.at_host_start.append(self.host_starts)

    def register(self, routes: Routes) -> None:
        routes.patches["Bios"] = self.patch
        routes.patches["SecureBoot"] = self.patch_secure_boot
        routes.actions["Bios.ResetBios"] = self.reset_to_defaults
        routes.actions["Bios.ChangePassword"] = self.change_password
        routes.actions["SecureBoot.ResetKeys"] = self.reset_keys

    def patch(self, call: Call) -> Answer:
        """PATCH of a BIOS resource or its settings object; all wrong attributes are named at once."""
        bios = self._bios_of(call.path)
        settings = self._settings_of(bios)
        if settings and path_key(call.path) != path_key(settings) and "Attributes" in call.body:
            hint = f"Send it to the settings object {settings}."
            raise RedfishError(400, property_not_writable("Attributes", hint))
        shown = {**call.document, "Attributes": call.body.get("Attributes")}
        accepted, messages = split_patch(shown, call.body, "Bios")
        wanted = accepted.get("Attributes")
        if not isinstance(wanted, dict):
            raise RedfishError(400, messages or property_value_type("Attributes", wanted))
        self._check_attributes(bios, wanted)
        self._pending.setdefault(path_key(bios), {}).update(wanted)
        if not settings:
            changed = self.machine.store.edit(call.path, lambda body: merge_properties(body, {"Attributes": wanted}))
        else:
            changed = self.machine.store.edit(settings, lambda body: body.setdefault("Attributes", {}).update(wanted))
        return Answer.of(200, annotated(changed, messages))

    def reset_to_defaults(self, call: Call) -> None:
        """Bios.ResetBios: the registry's defaults become pending; without a registry, what was recorded."""
        defaults = self._registry_defaults(call.path)
        recorded = self.machine.store.tree.document(call.path).get("Attributes") or {}
        self._pending[path_key(call.path)] = {name: defaults.get(name, value) for name, value in recorded.items()}

    def change_password(self, call: Call) -> None:
        for name in PASSWORD_PARAMETERS:
            if name not in call.body:
                raise action_parameter_missing(call.action, name)

    def host_starts(self, system: str) -> None:
        bios = linked_path(self.machine.store.document(system), "Bios")
        pending = self._pending.pop(path_key(bios), None) if bios else None
        if bios and pending and self.machine.store.find(bios):
            self.machine.store.edit(bios, lambda body: body.setdefault("Attributes", {}).update(pending))
            if settings := self._settings_of(bios):
                recorded = self.machine.store.tree.document(settings).get("Attributes") or {}
                self.machine.store.edit(settings, lambda body: settle_settings(body, recorded, pending))
        secure_boot = linked_path(self.machine.store.document(system), "SecureBoot")
        if secure_boot and (enabled := self._secure_boot.pop(path_key(secure_boot), None)) is not None:
            state = "Enabled" if enabled else "Disabled"
            self.machine.store.edit(secure_boot, lambda body: body.update(SecureBootCurrentBoot=state))

    def patch_secure_boot(self, call: Call) -> Answer:
        accepted, messages = split_patch(call.document, call.body, "SecureBoot")
        if "SecureBootEnable" in accepted:
            self._secure_boot[path_key(call.path)] = bool(accepted["SecureBootEnable"])
        changed = self.machine.store.edit(call.path, lambda body: merge_properties(body, accepted))
        return Answer.of(200, annotated(changed, messages))

    def reset_keys(self, call: Call) -> None:
        wanted = call.body.get("ResetKeysType")
        if wanted is None:
            raise action_parameter_missing(call.action, "ResetKeysType")
        mode = "SetupMode" if wanted in ("DeleteAllKeys", "DeletePK") else "UserMode"
        if "SecureBootMode" in call.document:
            self.machine.store.edit(call.path, lambda body: body.update(SecureBootMode=mode))

    def _settings_of(self, bios: str) -> str | None:
        settings = linked_path(self.machine.store.document(bios), "@Redfish.Settings", "SettingsObject")
        return settings if settings and self.machine.store.find(settings) else None

    def _bios_of(self, path: str) -> str:
        """The BIOS resource whose settings object is at `path`; `path` itself where it is none."""
        for resource in self.machine.store.of_schema("Bios"):
            settings = linked_path(resource.document, "@Redfish.Settings", "SettingsObject")
            if settings and path_key(settings) == path_key(path):
                return resource.path
        return path

    def _registry(self, bios: str) -> list[JsonObject]:
        """The attribute definitions of the registry that the BIOS names; empty where the tree lacks it."""
        name = self.machine.property(bios, "AttributeRegistry")
        if not isinstance(name, str):
            return []
        for resource in self.machine.store.of_schema("AttributeRegistry"):
            document = resource.document or {}
            if document.get("Id") == name or name in resource.path:
                entries = (document.get("RegistryEntries") or {}).get("Attributes")
                return [entry for entry in entries or [] if isinstance(entry, dict)]
        return []

    def _registry_defaults(self, bios: str) -> JsonObject:
        return {
            entry["AttributeName"]: entry["DefaultValue"]
            for entry in self._registry(bios)
            if entry.get("DefaultValue") is not None
        }

    def _check_attributes(self, bios: str, wanted: JsonObject) -> None:
        known: JsonObject = self.machine.property(bios, "Attributes") or {}
        definitions = {entry.get("AttributeName"): entry for entry in self._registry(bios)}
        faults = []
        for name, value in wanted.items():
            definition = definitions.get(name, {})
            choices = [
                choice.get("ValueName") for choice in definition.get("Value") or [] if isinstance(choice, dict)
            ]
            if name not in known and name not in definitions:
                faults.append(property_unknown(f"Attributes/{name}"))
            elif definition.get("ReadOnly") is True:
                faults.append(property_not_writable(f"Attributes/{name}"))
            elif choices and definition.get("Type") == "Enumeration" and value not in choices:
                faults.append(property_value_not_in_list(f"Attributes/{name}", value, choices))
            else:
                faults += list(wrong_values(known, name, value, "Attributes/"))
        if faults:
            raise RedfishError(400, faults)


def settle_settings(body: JsonObject, recorded: JsonObject, applied: JsonObject) -> None:
    """After a start nothing is pending: a full copy keeps the applied values, a sparse one is emptied."""
    attributes = body.get("Attributes")
    if isinstance(attributes, dict):
        for name in applied:
            if name in recorded:
                attributes[name] = applied[name]
            else:
                attributes.pop(name, None)
