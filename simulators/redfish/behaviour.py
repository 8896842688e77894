"""Manners of one vendor over the generic service: a behaviour may veto or alter a write, and its read-back."""

from simulators.redfish.documents import JsonObject
from simulators.redfish.errors import RedfishError
from simulators.redfish.routes import Call
from simulators.redfish.tree import Resource


class Behaviour:
    """The generic manner: every hook lets the service do what DSP0266 says. Vendors override what differs."""

    name = "generic"
    mirrors_media = False
    """One device under two URIs: a change of a slot shows in the slot of the same Id elsewhere."""
    claims_updates = False
    """A push is taken only while HttpPushUriTargetsBusy is set."""
    update_form = ""
    """The vendor's own form that its HttpPushUri takes: `ilo`; empty for the image as it is."""
    bios_settings_by_job = False
    """BIOS settings that come with an apply time make a job, and no other change is taken until it has run; those
    that come without one are kept and never applied."""
    bios_refuses_apply_time = False
    """A BIOS lists apply times, and refuses the property that asks for one."""

    storage_changes_by_task = False
    """Volumes are made and deleted by a task, also where that is at once."""
    one_storage_job = False
    """While a job of a storage controller waits or runs, no other change of it is taken."""
    volume_properties_refused: frozenset[str] = frozenset()
    """What a request for a volume must not hold, whatever the schema says."""
    volume_deletion_refuses_apply_time = False
    """The deletion of a volume must not name a time, although the collection offers times."""

    def before_write(self, call: Call) -> None:
        """Sees each PATCH, POST and DELETE before it is carried out; may change `call.body` or raise RedfishError."""

    def on_change(self, path: str, document: JsonObject) -> None:
        """Sees each document before it is stored, and may alter it: this is what a client reads back."""

    def requires_if_match(self, resource: Resource) -> bool:
        """Whether a PATCH of this resource without If-Match is answered 428."""
        return False

    def refuse_redundant_reset(self, action: str, reset_type: str, state: str) -> RedfishError | None:
        """The error for a reset to the state that the machine already has; None carries it out as nothing."""
        return None

    def refuse_redundant_eject(self, resource: Resource) -> RedfishError | None:
        """The error for ejecting from an empty slot; None says yes to it."""
        return None
