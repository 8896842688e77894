"""Vendor behaviours that are ready, and how a recorded tree tells whose it is.

Each quirk names the hardware it was seen on. More come with the driver suite.
"""

from simulators.redfish.behaviour import Behaviour
from simulators.redfish.documents import JsonObject, linked_path, member_paths, schema_of
from simulators.redfish.errors import (
    Message,
    RedfishError,
    action_conflicts,
    action_parameter_unknown,
    general_error,
    property_value_error,
)
from simulators.redfish.routes import Call
from simulators.redfish.tree import RecordedTree, Resource

INSERT = "VirtualMedia.InsertMedia"
EJECT = "VirtualMedia.EjectMedia"


class LenovoXcc(Behaviour):
    """ThinkSystem XCC (SR670 V2): media slots without actions are patched, and a PATCH needs If-Match.

    Sources: stmcginnis/gofish issue 529 (media by PATCH), ansible/ansible issue 56050 (412 and 428
    without an entity tag); recorded tree lenovo-sr670v2-xcc.
    """

    name = "lenovo-xcc"
    mirrors_media = True
    claims_updates = True  # metal-toolbox/bmclib
    bios_refuses_apply_time = True  # metal-toolbox/bmclib, its Lenovo BIOS settings

    def requires_if_match(self, resource: Resource) -> bool:
        return resource.schema in {"VirtualMedia", "ComputerSystem", "Bios", "ManagerAccount", "SecureBoot"}

    def before_write(self, call: Call) -> None:
        # RDOC slots take images by upload only (python-redfish-lenovo).
        uploads_only = str(call.document.get("Id", "")).startswith("RDOC")
        if call.resource.schema == "VirtualMedia" and uploads_only and call.body.get("Image"):
            raise RedfishError(400, property_value_error("Image", "this slot takes uploaded images only"))


class Supermicro(Behaviour):
    """X11 to H13 boards: InsertMedia knows neither Inserted nor WriteProtected; eject shows only when it can.

    Sources: stmcginnis/gofish issue 212, sushy release note fix-insert-media-payload; recorded tree
    supermicro-821ge (EjectMedia absent while the slot is empty).
    """

    name = "supermicro"

    def before_write(self, call: Call) -> None:
        if call.action == INSERT:
            refused = [name for name in ("Inserted", "WriteProtected") if name in call.body]
            if refused:
                raise RedfishError(400, [action_parameter_unknown(INSERT, name) for name in refused])
        boot = call.body.get("Boot")
        if call.resource.schema == "ComputerSystem" and isinstance(boot, dict) and "BootSourceOverrideTarget" in boot:
            # A target without Enabled falls back to Once (OpenStack story/2008547).
            boot.setdefault("BootSourceOverrideEnabled", "Once")

    def on_change(self, path: str, document: JsonObject) -> None:
        if schema_of(document) != "VirtualMedia":
            return
        actions = document.setdefault("Actions", {})
        if document.get("Inserted"):
            actions[f"#{EJECT}"] = {"target": f"{path}/Actions/{EJECT}"}
        else:
            actions.pop(f"#{EJECT}", None)


class HpeIlo(Behaviour):
    """iLO 5 and 6: an eject needs a JSON body, if only `{}`; a redundant reset or eject is an error.

    Sources: sushy release note fix-eject-empty-dict (400 or 415 without a body; an eject from an empty
    slot is answered 400, 409 or 500 in the field), ironic note catch-redfish-409 and sushy note
    retry-ilo-not-ready (InvalidOperationForSystemState). Which firmware gives which status is not
    established: 400 is our choice here.
    """

    name = "hpe-ilo"
    volume_properties_refused = frozenset({"VolumeType", "Encrypted"})  # iLO 6: OpenStack Ironic's notes on RAID
    update_form = "ilo"  # HPE's python-ilorest-library

    def before_write(self, call: Call) -> None:
        if call.action == EJECT and not call.request.body:
            raise RedfishError(
                415, Message("iLO.2.14.UnsupportedMediaType", "The request has no JSON body.", "Critical")
            )

    def refuse_redundant_reset(self, action: str, reset_type: str, state: str) -> RedfishError | None:
        text = f"ResetType {reset_type} is not valid while the power state is {state}."
        return RedfishError(400, Message("iLO.2.14.InvalidOperationForSystemState", text, args=(reset_type,)))

    def refuse_redundant_eject(self, resource: Resource) -> RedfishError | None:
        return RedfishError(400, Message("GeneralError", "No virtual media is inserted."))


class DellIdrac(Behaviour):
    """iDRAC: a reset to the present state is a conflict; ejecting from an empty slot is a server error.

    Sources: ironic note catch-redfish-409 and Launchpad bug 2162995 (409 ActionParameterValueConflict);
    for the eject, sushy release note fix-eject-empty-dict (400, 409 or 500 in the field). Which firmware
    gives which status is not established: 500 is our choice here, so that each kind is met by some tree.
    """

    name = "dell-idrac"
    storage_changes_by_task = True  # OpenStack Ironic's notes on RAID over Redfish
    one_storage_job = True
    volume_deletion_refuses_apply_time = True  # from 6.00.02: OpenStack Ironic's notes on RAID
    bios_settings_by_job = True  # dell/iDRAC-Redfish-Scripting issues 84 and 249

    def refuse_redundant_reset(self, action: str, reset_type: str, state: str) -> RedfishError | None:
        return action_conflicts(action, "ResetType", reset_type, state)

    def refuse_redundant_eject(self, resource: Resource) -> RedfishError | None:
        return general_error(500, "No virtual media is inserted.")


BEHAVIOURS: dict[str, type[Behaviour]] = {
    kind.name: kind for kind in (Behaviour, LenovoXcc, Supermicro, HpeIlo, DellIdrac)
}
_BY_VENDOR: dict[str, type[Behaviour]] = {
    "lenovo": LenovoXcc,
    "supermicro": Supermicro,
    "hpe": HpeIlo,
    "dell": DellIdrac,
}


def detect_behaviour(tree: RecordedTree) -> Behaviour:
    """The behaviour of the vendor whose tree it is: by the root's Vendor and Oem, else by a system's Manufacturer.

    HPE and Dell are known by the root alone: a system that they made may have another vendor's BMC
    (an HPE Cray EX blade has).
    """
    root = tree.root
    oem = root.get("Oem")
    for name in [str(root.get("Vendor") or ""), *(oem if isinstance(oem, dict) else ())]:
        if kind := _BY_VENDOR.get(name.lower()):
            return kind()
    systems = linked_path(root, "Systems")
    for path in member_paths(tree.document(systems)) if systems else []:
        words = str(tree.document(path).get("Manufacturer") or "").lower().replace(",", " ").split()
        if words and (kind := _BY_VENDOR.get(words[0])) in (LenovoXcc, Supermicro):
            return kind()
    return Behaviour()


def behaviour_named(name: str) -> Behaviour:
    """A ready behaviour by its name; ValueError lists the names."""
    kind = BEHAVIOURS.get(name)
    if kind is None:
        raise ValueError(f"there is no behaviour {name!r}; choose one of: {', '.join(sorted(BEHAVIOURS))}")
    return kind()
