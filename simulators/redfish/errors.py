"""Errors as a Redfish service tells them: a status and an extended error body (DSP0266, Error responses).

The message keys are those of DMTF's Base registry, so that clients recognise them; the wording is our own.
"""

from collections.abc import Iterable

import msgspec

from simulators.redfish.documents import Answer, JsonObject

BASE_REGISTRY = "Base.1.18"


class Message(msgspec.Struct, frozen=True):
    """One entry of `@Message.ExtendedInfo`. `properties` are JSON pointers of what it is about."""

    id: str
    text: str
    severity: str = "Warning"
    resolution: str = "None."
    args: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()

    def document(self) -> JsonObject:
        """The message as an element of `@Message.ExtendedInfo`."""
        body: JsonObject = {
            "@odata.type": "#Message.v1_2_0.Message",
            "MessageId": self.id if "." in self.id else f"{BASE_REGISTRY}.{self.id}",
            "Message": self.text,
            "MessageArgs": list(self.args),
            "MessageSeverity": self.severity,
            "Severity": self.severity,
            "Resolution": self.resolution,
        }
        if self.properties:
            body["RelatedProperties"] = list(self.properties)
        return body


class RedfishError(Exception):
    """A request that the service refuses: raised anywhere in its handling, answered as it stands."""

    def __init__(
        self, status: int, messages: Message | Iterable[Message], headers: dict[str, str] | None = None
    ) -> None:
        self.status = status
        self.messages = (messages,) if isinstance(messages, Message) else tuple(messages)
        self.headers = headers or {}
        super().__init__(f"{status} " + "; ".join(message.text for message in self.messages))

    def answer(self) -> Answer:
        return Answer.of(
            self.status,
            error_document(self.messages),
            {"OData-Version": "4.0", "Cache-Control": "no-cache", **self.headers},
        )


def error_document(messages: tuple[Message, ...]) -> JsonObject:
    """The error body. With several messages `code` is GeneralError, as the specification wants."""
    entries = [message.document() for message in messages]
    if len(entries) == 1:
        code, text = entries[0]["MessageId"], entries[0]["Message"]
    else:
        code, text = f"{BASE_REGISTRY}.GeneralError", "The request failed; see @Message.ExtendedInfo for each cause."
    return {"error": {"code": code, "message": text, "@Message.ExtendedInfo": entries}}


def success_document() -> JsonObject:
    return error_document((Message("Success", "The request was carried out.", "OK"),))


def malformed_json() -> RedfishError:
    return RedfishError(
        400, Message("MalformedJSON", "The body is not a JSON object.", "Critical", "Send a JSON object.")
    )


def not_found(path: str) -> RedfishError:
    return RedfishError(
        404,
        Message(
            "ResourceMissingAtURI",
            f"There is no resource at {path}.",
            "Critical",
            "Follow the links of the service root.",
            (path,),
        ),
    )


def method_not_allowed(method: str, allow: str) -> RedfishError:
    return RedfishError(
        405,
        Message("OperationNotAllowed", f"{method} is not allowed on this resource.", resolution=f"Use {allow}."),
        {"Allow": allow},
    )


def unauthorized() -> RedfishError:
    return RedfishError(
        401,
        Message(
            "NoValidSession",
            "The request carries no valid session token or credentials.",
            "Critical",
            "Log in and send the request again.",
        ),
        {"WWW-Authenticate": 'Basic realm="Redfish"'},
    )


def insufficient_privilege() -> RedfishError:
    return RedfishError(
        403,
        Message(
            "InsufficientPrivilege",
            "The account or session may not do this.",
            "Critical",
            "Use an account whose role holds the privilege.",
        ),
    )


def property_unknown(name: str) -> Message:
    return Message(
        "PropertyUnknown",
        f"The resource has no property {name}.",
        resolution="Leave the property out.",
        args=(name,),
        properties=(f"#/{name}",),
    )


def property_not_writable(name: str, hint: str = "Leave the property out.") -> Message:
    return Message(
        "PropertyNotWritable",
        f"The property {name} is read-only here.",
        resolution=hint,
        args=(name,),
        properties=(f"#/{name}",),
    )


def property_missing(name: str) -> Message:
    return Message(
        "PropertyMissing",
        f"The property {name} is required and absent.",
        resolution="Add the property.",
        args=(name,),
        properties=(f"#/{name}",),
    )


def property_value_type(name: str, value: object) -> Message:
    return Message(
        "PropertyValueTypeError",
        f"The value of property {name} has the wrong type.",
        resolution="Send a value of the property's type.",
        args=(str(value), name),
        properties=(f"#/{name}",),
    )


def property_value_not_in_list(name: str, value: object, allowed: Iterable[object]) -> Message:
    choices = ", ".join(str(choice) for choice in allowed)
    return Message(
        "PropertyValueNotInList",
        f"The value {value} of property {name} is not one of: {choices}.",
        resolution="Send one of the listed values.",
        args=(str(value), name),
        properties=(f"#/{name}",),
    )


def property_value_error(name: str, reason: str) -> Message:
    return Message(
        "PropertyValueError",
        f"The value of property {name} is not valid: {reason}.",
        args=(name,),
        properties=(f"#/{name}",),
    )


def action_parameter_missing(action: str, name: str) -> RedfishError:
    return RedfishError(
        400,
        Message(
            "ActionParameterMissing",
            f"The action {action} needs the parameter {name}.",
            "Critical",
            "Add the parameter.",
            (action, name),
            (f"#/{name}",),
        ),
    )


def action_parameter_unknown(action: str, name: str) -> Message:
    return Message(
        "ActionParameterUnknown",
        f"The action {action} has no parameter {name}.",
        resolution="Leave the parameter out.",
        args=(action, name),
        properties=(f"#/{name}",),
    )


def action_parameter_type(action: str, name: str, value: object) -> RedfishError:
    return RedfishError(
        400,
        Message(
            "ActionParameterValueTypeError",
            f"The parameter {name} of the action {action} has the wrong type.",
            args=(str(value), name, action),
            properties=(f"#/{name}",),
        ),
    )


def action_parameter_format(action: str, name: str, value: object) -> RedfishError:
    return RedfishError(
        400,
        Message(
            "ActionParameterValueFormatError",
            f"The value {value!r} of the parameter {name} of {action} has a form that is not accepted.",
            "Warning",
            "Send a value of another form.",
            (str(value), name, action),
        ),
    )


def action_parameter_not_in_list(action: str, name: str, value: object, allowed: Iterable[object]) -> RedfishError:
    choices = ", ".join(str(choice) for choice in allowed)
    return RedfishError(
        400,
        Message(
            "ActionParameterValueNotInList",
            f"The value {value} of the parameter {name} of the action {action} is not one of: {choices}.",
            resolution="Send one of the listed values.",
            args=(str(value), name, action),
            properties=(f"#/{name}",),
        ),
    )


def action_conflicts(action: str, name: str, value: object, state: str) -> RedfishError:
    """409: the action cannot be done in the machine's present state."""
    return RedfishError(
        409,
        Message(
            "ActionParameterValueConflict",
            f"{name} {value} of the action {action} cannot be done while the state is {state}.",
            resolution="Read the state, then choose a value that fits it.",
            args=(name, str(value)),
        ),
    )


def resource_in_use(what: str) -> RedfishError:
    return RedfishError(409, Message("ResourceInUse", f"{what} is in use.", resolution="Release it first."))


def precondition_failed() -> RedfishError:
    return RedfishError(
        412,
        Message(
            "PreconditionFailed",
            "If-Match does not name the present entity tag of the resource.",
            "Critical",
            "Read the resource again and use its entity tag.",
        ),
    )


def precondition_required() -> RedfishError:
    return RedfishError(
        428,
        Message(
            "PreconditionRequired",
            "A change of this resource needs If-Match with its entity tag.",
            "Critical",
            "Read the resource and send its entity tag in If-Match.",
        ),
    )


def temporarily_unavailable(seconds: int) -> RedfishError:
    return RedfishError(
        503,
        Message(
            "ServiceTemporarilyUnavailable",
            f"The service is not available for now; try again in {seconds} seconds.",
            "Critical",
            "Wait as long as Retry-After says.",
            (str(seconds),),
        ),
        {"Retry-After": str(seconds)},
    )


def general_error(status: int, text: str) -> RedfishError:
    return RedfishError(status, Message("GeneralError", text, "Critical"))


# The status that a recorded error stands for; recordings hold bodies only.
ERROR_STATUS: dict[str, int] = {
    "ResourceMissingAtURI": 404,
    "ResourceNotFound": 404,
    "InsufficientPrivilege": 403,
    "OemLicenseNotPassed": 403,
    "ServiceTemporarilyUnavailable": 503,
    "ServiceShuttingDown": 503,
    "QueryNotSupported": 501,
    "ActionNotSupported": 501,
    "LIC501": 403,  # iDRAC: a licence is missing
    "SYS403": 404,  # iDRAC: the resource is not there
    "NoValidSession": 401,
}


def recorded_error(document: JsonObject) -> Answer:
    """A recorded error body, with the status that its message key stands for (recordings hold no status)."""
    error = document["error"] if isinstance(document["error"], dict) else {}
    entries = error.get("@Message.ExtendedInfo")
    first = entries[0] if isinstance(entries, list) and entries else entries
    identifier = first.get("MessageId") if isinstance(first, dict) else None
    key = str(identifier or error.get("code") or "").rpartition(".")[2]
    return Answer.of(ERROR_STATUS.get(key, 500 if key in ("InternalError", "GeneralError") else 400), document)
