"""Which properties a PATCH may change, and with what values: the resource decides, not the client."""

from collections.abc import Iterator

from simulators.redfish.documents import JsonObject
from simulators.redfish.errors import (
    Message,
    RedfishError,
    error_document,
    property_not_writable,
    property_unknown,
    property_value_not_in_list,
    property_value_type,
)

# Schemas whose resources a client cannot PATCH at all; so are all collections and registries.
READ_ONLY_SCHEMAS = frozenset(
    {
        "ServiceRoot",
        "ActionInfo",
        "JsonSchemaFile",
        "MessageRegistry",
        "MessageRegistryFile",
        "AttributeRegistry",
        "PrivilegeRegistry",
        "LogEntry",
        "Role",
        "Session",
        "Sensor",
        "SoftwareInventory",
        "Task",
        "Power",
        "EnvironmentMetrics",
        "ThermalMetrics",
        "ProcessorMetrics",
        "MemoryMetrics",
        "HostInterface",
        "BootOption",
        "CertificateLocations",
        "CertificateService",
        "Certificate",
        "SimpleStorage",
        "",
    }
)
# What is writable where the schema says so for only a few properties; other schemas: all but READ_ONLY.
WRITABLE: dict[str, frozenset[str]] = {
    "ComputerSystem": frozenset(
        {
            "AssetTag",
            "Boot",
            "HostName",
            "HostWatchdogTimer",
            "IndicatorLED",
            "LocationIndicatorActive",
            "Oem",
            "PowerMode",
            "PowerRestorePolicy",
            "SerialConsole",
            "VirtualMediaConfig",
        }
    ),
    "Chassis": frozenset({"AssetTag", "IndicatorLED", "LocationIndicatorActive", "Location", "Oem"}),
    "Manager": frozenset(
        {
            "CommandShell",
            "DateTime",
            "DateTimeLocalOffset",
            "GraphicalConsole",
            "LocationIndicatorActive",
            "Oem",
            "SerialConsole",
            "ServiceIdentification",
            "TimeZoneName",
        }
    ),
    "ManagerAccount": frozenset(
        {"AccountTypes", "Enabled", "Locked", "Oem", "Password", "PasswordChangeRequired", "RoleId", "UserName"}
    ),
    "SecureBoot": frozenset({"SecureBootEnable", "Oem"}),
    "SessionService": frozenset({"ServiceEnabled", "SessionTimeout", "Oem"}),
    "Bios": frozenset({"Attributes", "Oem", "@Redfish.SettingsApplyTime"}),
    "Drive": frozenset(
        {"AssetTag", "HotspareType", "IndicatorLED", "LocationIndicatorActive", "Oem", "StatusIndicator"}
    ),
    "Processor": frozenset({"Enabled", "LocationIndicatorActive", "Oem", "SpeedLimitMHz"}),
    "Memory": frozenset({"Enabled", "LocationIndicatorActive", "Oem"}),
    "EventDestination": frozenset({"Context", "DeliveryRetryPolicy", "VerifyCertificate", "Oem"}),
    "UpdateService": frozenset(
        {
            "HttpPushUriOptions",
            "HttpPushUriOptionsBusy",
            "HttpPushUriTargets",
            "HttpPushUriTargetsBusy",
            "ServiceEnabled",
            "Oem",
        }
    ),
    "VirtualMedia": frozenset(
        {
            "Image",
            "Inserted",
            "Oem",
            "Password",
            "TransferMethod",
            "TransferProtocolType",
            "UserName",
            "VerifyCertificate",
            "WriteProtected",
        }
    ),
}
# Properties that a recording does not show although the schema lets a client write them.
WRITE_ONLY: dict[str, frozenset[str]] = {
    "ComputerSystem": frozenset({"IndicatorLED", "LocationIndicatorActive", "AssetTag"}),
    "ManagerAccount": frozenset({"Password", "PasswordChangeRequired"}),
    "VirtualMedia": frozenset({"Password", "UserName", "WriteProtected", "TransferMethod", "TransferProtocolType"}),
}
READ_ONLY = frozenset({"Id", "Name", "Description", "Status", "Members", "Members@odata.count", "Actions", "UUID"})
ENUMERATIONS: dict[str, tuple[str, ...]] = {
    "IndicatorLED": ("Lit", "Blinking", "Off", "Unknown"),
    "BootSourceOverrideEnabled": ("Disabled", "Once", "Continuous"),
    "BootSourceOverrideMode": ("UEFI", "Legacy"),
}
ANNOTATIONS = frozenset({"@Redfish.SettingsApplyTime", "@Redfish.OperationApplyTime"})


def is_patchable(schema: str) -> bool:
    """Whether resources of a schema take a PATCH at all."""
    return schema not in READ_ONLY_SCHEMAS and not schema.endswith("Collection")


def refused_properties(document: JsonObject, body: JsonObject, schema: str) -> dict[str, Message]:
    """The top-level properties of a PATCH that the resource lacks or does not let a client write."""
    writable = WRITABLE.get(schema)
    hidden = WRITE_ONLY.get(schema, frozenset())
    refused: dict[str, Message] = {}
    for name in body.keys() - ANNOTATIONS:
        if name not in document and name not in hidden and name != "Oem":
            refused[name] = property_unknown(name)
        elif name.startswith("@odata.") or name in READ_ONLY or (writable is not None and name not in writable):
            refused[name] = property_not_writable(name)
    return {name: refused[name] for name in body if name in refused}


def wrong_values(holder: JsonObject, name: str, value: object, prefix: str = "") -> Iterator[Message]:
    """Faults of a value against the present value's type, the annotated values and the known enumerations."""
    label = f"{prefix}{name}"
    present = holder.get(name)
    if isinstance(present, dict) and isinstance(value, dict):
        if name == "Oem":
            return
        for inner, inner_value in value.items():
            if inner not in present and f"{inner}@Redfish.AllowableValues" not in present:
                yield property_unknown(f"{label}/{inner}")
            else:
                yield from wrong_values(present, inner, inner_value, f"{label}/")
        return
    if isinstance(present, dict) or (
        present is not None and value is not None and kind_of(present) != kind_of(value)
    ):
        yield property_value_type(label, value)
        return
    allowed = holder.get(f"{name}@Redfish.AllowableValues") or ENUMERATIONS.get(name)
    is_scalar = value is not None and not isinstance(value, list)
    if isinstance(allowed, list | tuple) and is_scalar and value not in allowed:
        yield property_value_not_in_list(label, value, allowed)


def kind_of(value: object) -> str:
    """The JSON type of a value, with all numbers being of one type."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def split_patch(document: JsonObject, body: JsonObject, schema: str) -> tuple[JsonObject, list[Message]]:
    """The part of a PATCH that can be done, and messages about the properties that cannot (DSP0266, PATCH).

    RedfishError 400 where nothing can be done, or a value is wrong: then nothing is changed.
    """
    if not body:
        raise RedfishError(400, Message("EmptyJSON", "The body has no property to change.", "Critical"))
    if all(name.startswith("@odata.") for name in body):
        raise RedfishError(400, no_operation())
    refused = refused_properties(document, body, schema)
    accepted = {name: value for name, value in body.items() if name not in refused}
    messages = list(refused.values())
    wrong = [message for name, value in accepted.items() for message in wrong_values(document, name, value)]
    if wrong or not accepted.keys() - ANNOTATIONS:
        raise RedfishError(400, [*messages, *wrong] or no_operation())
    return accepted, messages


def no_operation() -> Message:
    return Message("NoOperation", "The request holds no change: annotations of OData cannot be changed.", "Warning")


def annotated(document: JsonObject, messages: list[Message]) -> JsonObject:
    """The changed resource with the messages about what could not be changed."""
    if not messages:
        return document
    entries = error_document(tuple(messages))["error"]["@Message.ExtendedInfo"]
    return {**document, "@Message.ExtendedInfo": entries}
