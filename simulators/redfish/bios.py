"""BIOS attributes and secure boot: what is set now takes effect when the host starts next."""

from dataclasses import dataclass, field

from simulators.redfish.bios_jobs import BiosJobs
from simulators.redfish.documents import Answer, JsonObject, linked_path, path_key
from simulators.redfish.errors import (
    Message,
    RedfishError,
    action_parameter_missing,
    property_not_writable,
    property_unknown,
    property_value_error,
    property_value_not_in_list,
    property_value_type,
)
from simulators.redfish.machine import Machine, merge_properties
from simulators.redfish.properties import annotated, split_patch, wrong_values
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tasks import TaskEngine

PASSWORD_PARAMETERS = ("PasswordName", "OldPassword", "NewPassword")
APPLY_TIME = "@Redfish.SettingsApplyTime"
IMMEDIATE = "Immediate"
DEFAULTS_PENDING = "ResetBiosToDefaultsPending"


@dataclass(slots=True)
class Waiting:
    """What one BIOS takes over with the next start of its host."""

    attributes: JsonObject = field(default_factory=dict)
    is_scheduled: bool = True
    """False for settings that a BMC keeps without a job: they are never applied."""


class Bios:
    """Attributes through the settings object where the tree has one, else on the BIOS resource itself."""

    def __init__(self, machine: Machine, tasks: TaskEngine) -> None:
        self.machine = machine
        self.jobs = BiosJobs(machine, tasks)
        self._waiting: dict[str, Waiting] = {}
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
        self.jobs.check_free(bios)
        apply_time = self._apply_time(bios, call)
        shown = {**call.document, "Attributes": call.body.get("Attributes")}
        accepted, messages = split_patch(shown, call.body, "Bios")
        wanted = accepted.get("Attributes")
        if not isinstance(wanted, dict):
            raise RedfishError(400, messages or property_value_type("Attributes", wanted))
        self._check_attributes(bios, wanted)
        if apply_time == IMMEDIATE:
            return self.jobs.apply_now(lambda: self._apply(bios, wanted))
        return self._queue(bios, settings, wanted, apply_time, call, messages)

    def reset_to_defaults(self, call: Call) -> None:
        """Bios.ResetBios: the registry's defaults become pending; without a registry, what was recorded."""
        bios = self._bios_of(call.path)
        self._check_parameters(call)
        defaults = self._registry_defaults(bios)
        recorded = self.machine.store.tree.document(bios).get("Attributes") or {}
        values = {name: defaults.get(name, value) for name, value in recorded.items()}
        self._waiting[path_key(bios)] = Waiting(values)
        if DEFAULTS_PENDING in (self.machine.store.document(bios) or {}):
            self.machine.store.edit(bios, lambda body: body.update({DEFAULTS_PENDING: True}))

    def change_password(self, call: Call) -> None:
        for name in PASSWORD_PARAMETERS:
            if name not in call.body:
                raise action_parameter_missing(call.action, name)

    def host_starts(self, system: str) -> None:
        bios = linked_path(self.machine.store.document(system), "Bios")
        waiting = self._waiting.get(path_key(bios)) if bios else None
        if bios and waiting is not None and waiting.is_scheduled and self.machine.store.find(bios):
            del self._waiting[path_key(bios)]
            attributes = waiting.attributes
            self.jobs.host_starts(bios, lambda: self._apply(bios, attributes))
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

    def _queue(
        self,
        bios: str,
        settings: str | None,
        wanted: JsonObject,
        apply_time: str | None,
        call: Call,
        messages: list[Message],
    ) -> Answer:
        """Lets the values wait for the next start; as a job where the vendor makes one."""
        waiting = self._waiting.setdefault(path_key(bios), Waiting())
        waiting.attributes.update(wanted)
        by_job = self.machine.behaviour.bios_settings_by_job
        waiting.is_scheduled = not by_job or apply_time is not None
        if settings:
            changed = self.machine.store.edit(settings, lambda body: body.setdefault("Attributes", {}).update(wanted))
        else:
            changed = self.machine.store.edit(call.path, lambda body: merge_properties(body, {"Attributes": wanted}))
        if by_job and apply_time is not None:
            return self.jobs.schedule(bios)
        return Answer.of(200, annotated(changed, messages))

    def _apply(self, bios: str, attributes: JsonObject) -> None:
        def apply(body: JsonObject) -> None:
            body.setdefault("Attributes", {}).update(attributes)
            if DEFAULTS_PENDING in body:
                body[DEFAULTS_PENDING] = False

        self.machine.store.edit(bios, apply)
        if settings := self._settings_of(bios):
            recorded = self.machine.store.tree.document(settings).get("Attributes") or {}
            self.machine.store.edit(settings, lambda body: settle_settings(body, recorded, attributes))

    def _apply_time(self, bios: str, call: Call) -> str | None:
        """The apply time that the request asks for. RedfishError where this BMC has none, or not this one."""
        if APPLY_TIME not in call.body:
            return None
        offered = self._offered_apply_times(bios, call.document)
        if not offered or self.machine.behaviour.bios_refuses_apply_time:
            raise RedfishError(400, property_unknown(APPLY_TIME))
        asked = call.body[APPLY_TIME]
        word = asked.get("ApplyTime") if isinstance(asked, dict) else None
        if word not in offered:
            raise RedfishError(400, property_value_not_in_list(f"{APPLY_TIME}/ApplyTime", word, offered))
        return str(word)

    def _offered_apply_times(self, bios: str, settings: JsonObject) -> list[str]:
        listed = self.machine.property(bios, "@Redfish.Settings", "SupportedApplyTimes")
        annotation = settings.get(APPLY_TIME)
        more = annotation.get("ApplyTime@Redfish.AllowableValues") if isinstance(annotation, dict) else None
        return [*(listed if isinstance(listed, list) else []), *(more if isinstance(more, list) else [])]

    def _check_parameters(self, call: Call) -> None:
        """What the action's ActionInfo says that must be given."""
        action = (call.document.get("Actions") or {}).get(f"#{call.action}")
        info = linked_path(action, "@Redfish.ActionInfo") or (action or {}).get("@Redfish.ActionInfo")
        document = self.machine.store.document(info if isinstance(info, str) else None) or {}
        for parameter in document.get("Parameters") or []:
            name = parameter.get("Name")
            if parameter.get("Required") is True and name not in call.body:
                raise action_parameter_missing(call.action, str(name))

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
            # Supermicro and AMI write the version of one registry in two ways.
            if str(document.get("Id")).partition(".")[0] == name.partition(".")[0] or name in resource.path:
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
            choices = choices_of(definition, known.get(name))
            if name not in known and name not in definitions:
                faults.append(property_unknown(f"Attributes/{name}"))
            elif definition.get("ReadOnly") is True:
                faults.append(property_not_writable(f"Attributes/{name}"))
            elif choices and definition.get("Type") == "Enumeration" and value not in choices:
                faults.append(property_value_not_in_list(f"Attributes/{name}", value, choices))
            elif is_out_of_bounds(definition, value):
                faults.append(property_value_error(f"Attributes/{name}", "it is out of bounds"))
            else:
                faults += list(wrong_values(known, name, value, "Attributes/"))
        if faults:
            raise RedfishError(400, faults)


def choices_of(definition: JsonObject, present: object) -> list[object]:
    """An attribute's choices: their names, or (Supermicro) their display names where the present value is one."""
    listed = [choice for choice in definition.get("Value") or [] if isinstance(choice, dict)]
    names = [choice.get("ValueName") for choice in listed]
    shown = [choice.get("ValueDisplayName") for choice in listed]
    return shown if present in shown and present not in names else names


def is_out_of_bounds(definition: JsonObject, value: object) -> bool:
    low, high = definition.get("LowerBound"), definition.get("UpperBound")
    if definition.get("Type") != "Integer" or isinstance(value, bool) or not isinstance(value, int):
        return False
    below = isinstance(low, int) and value < low
    # GH200 writes an unsigned bound of 64 bits as -1.
    above = isinstance(high, int) and value > high and not (isinstance(low, int) and high < low)
    return below or above


def settle_settings(body: JsonObject, recorded: JsonObject, applied: JsonObject) -> None:
    """After a start nothing is pending: a full copy keeps the applied values, a sparse one is emptied."""
    attributes = body.get("Attributes")
    if isinstance(attributes, dict):
        for name in applied:
            if name in recorded:
                attributes[name] = applied[name]
            else:
                attributes.pop(name, None)
