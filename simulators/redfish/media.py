"""Virtual media: insert and eject by action, or by PATCH where a slot has no actions."""

from urllib.parse import urlparse

from simulators.redfish.documents import Answer, JsonObject
from simulators.redfish.errors import (
    RedfishError,
    action_parameter_missing,
    action_parameter_type,
    action_parameter_unknown,
    property_not_writable,
    property_value_error,
    property_value_type,
    resource_in_use,
)
from simulators.redfish.machine import Machine
from simulators.redfish.properties import annotated, split_patch
from simulators.redfish.routes import Call, Routes
from simulators.redfish.tree import Resource

INSERT = "VirtualMedia.InsertMedia"
EJECT = "VirtualMedia.EjectMedia"
PARAMETERS: dict[str, type] = {
    "Image": str,
    "Inserted": bool,
    "WriteProtected": bool,
    "UserName": str,
    "Password": str,
    "TransferMethod": str,
    "TransferProtocolType": str,
    "MediaType": str,
}


class VirtualMedia:
    """Inserts and ejects images. Nothing is fetched: a slot only remembers its image."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def register(self, routes: Routes) -> None:
        routes.actions[INSERT] = self.insert
        routes.actions[EJECT] = self.eject
        routes.patches["VirtualMedia"] = self.patch

    def insert(self, call: Call) -> Answer | None:
        """InsertMedia. Errors: those of `check_insertion`."""
        self.check_insertion(call)
        self.put_image(call.resource, call.body)
        return None

    def check_insertion(self, call: Call) -> None:
        """RedfishError: 400 for a missing, unknown or wrong parameter, 409 where an image is inserted."""
        unknown = [name for name in call.body if name not in PARAMETERS and not name.startswith(("@", "Oem"))]
        if unknown:
            raise RedfishError(400, [action_parameter_unknown(INSERT, name) for name in unknown])
        if not call.body.get("Image"):
            raise action_parameter_missing(INSERT, "Image")
        for name, kind in PARAMETERS.items():
            value = call.body.get(name)
            if value is not None and not isinstance(value, kind):
                raise action_parameter_type(INSERT, name, value)
        if call.document.get("Inserted") and call.document.get("Image"):
            raise resource_in_use("The virtual media slot")

    def eject(self, call: Call) -> None:
        """EjectMedia. The boot override is left as it is."""
        if call.body:
            raise RedfishError(400, [action_parameter_unknown(EJECT, name) for name in call.body])
        if not call.document.get("Inserted"):
            refusal = self.machine.behaviour.refuse_redundant_eject(call.resource)
            if refusal is not None:
                raise refusal
        self.clear_image(call.resource)

    def patch(self, call: Call) -> Answer:
        """PATCH of a slot. Where the slot has an insert action, its image changes by that action only."""
        if takes_actions(call.document) and {"Image", "Inserted"} & call.body.keys():
            names = [name for name in ("Image", "Inserted") if name in call.body]
            raise RedfishError(400, [property_not_writable(name, f"Use the action {INSERT}.") for name in names])
        image, inserted = call.body.get("Image"), call.body.get("Inserted")
        if image is not None and not isinstance(image, str):
            raise RedfishError(400, property_value_type("Image", image))
        if inserted is True and not (image or call.document.get("Image")):
            raise RedfishError(400, property_value_error("Inserted", "there is no Image to insert"))
        accepted, messages = split_patch({**call.document, "Image": "", "Inserted": False}, call.body, "VirtualMedia")
        if image:
            self.put_image(call.resource, accepted)
        elif "Image" in call.body or inserted is False:
            self.clear_image(call.resource)
        else:
            self._change(call.resource, {name: accepted[name] for name in accepted if name != "Password"})
        return Answer.of(200, annotated(self.machine.store.document(call.path) or {}, messages))

    def put_image(self, slot: Resource, wanted: JsonObject) -> None:
        image = str(wanted["Image"])
        inserted = bool(wanted.get("Inserted", True))
        values: JsonObject = {
            "Image": image,
            "ImageName": urlparse(image).path.rpartition("/")[2] or image,
            "Inserted": inserted,
            "ConnectedVia": "URI" if inserted else "NotConnected",
            "WriteProtected": wanted.get("WriteProtected", True),
        }
        for name in ("TransferMethod", "TransferProtocolType", "UserName", "VerifyCertificate"):
            if name in wanted:
                values[name] = wanted[name]
        self._change(slot, values)

    def clear_image(self, slot: Resource) -> None:
        recorded = (self.machine.store.tree.document(slot.path) or {}).get("Image")
        # Services write "no image" in their own way: null, "" (iLO) or the word None (MegaRAC).
        empty = recorded if recorded in ("", "None") else None
        self._change(
            slot,
            {"Image": empty, "ImageName": empty, "Inserted": False, "ConnectedVia": "NotConnected", "UserName": None},
        )

    def _change(self, slot: Resource, values: JsonObject) -> None:
        for path in [slot.path, *self._mirrors(slot)]:
            self.machine.store.edit(path, lambda document: show_media(document, values))

    def _mirrors(self, slot: Resource) -> list[str]:
        if not self.machine.behaviour.mirrors_media or slot.document is None:
            return []
        same = slot.document.get("Id")
        return [
            other.path
            for other in self.machine.store.of_schema("VirtualMedia")
            if other.path != slot.path and (other.document or {}).get("Id") == same
        ]


def takes_actions(document: JsonObject) -> bool:
    """Whether a slot offers InsertMedia; a slot that does not takes a PATCH."""
    actions = document.get("Actions")
    return isinstance(actions, dict) and f"#{INSERT}" in actions


def show_media(document: JsonObject, values: JsonObject) -> None:
    """Writes the values that this slot's resource shows; Image and Inserted always, the rest where recorded."""
    for name, value in values.items():
        if name in document or name in ("Image", "Inserted"):
            document[name] = value
    if "Password" in document:
        document["Password"] = None
