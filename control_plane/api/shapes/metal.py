"""Provisioning: what state a machine is in, and the verbs that move it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from control_plane.api.shapes.common import Reason, Reference, Request, View
from control_plane.api.shapes.profiles import Version
from control_plane.engine.records import WorkflowError
from control_plane.metal.states import MetalVerb
from protocol.address_logins import login_faults
from protocol.errors import Issue
from protocol.shapes.deploy import Image, RootDeviceHints

__all__ = [
    "AbortNode",
    "CommissionNode",
    "DeployNode",
    "MaintainNode",
    "NodeProfiles",
    "ProvisionView",
    "RecoverNode",
    "ReleaseNode",
    "RescueNode",
    "profile_faults",
]

_LARGEST_DATA = 256 * 1024
_VERBS = tuple(verb.value for verb in MetalVerb)
Data = Annotated[str, Meta(max_length=_LARGEST_DATA, pattern=r"^[^\x00]*$(?!\n)")]
NodeProfiles = Annotated[dict[str, Reference], Meta(max_length=len(_VERBS))]
"""By verb, in place of the settings' own."""


class _Provision(Request, frozen=True, kw_only=True):
    node_id: Reference
    profile: Reference | None = None
    """In place of the bound one."""
    version: Version | None = None
    """Of that profile; the latest where it is left out."""


class CommissionNode(_Provision, frozen=True, kw_only=True):
    pass


class DeployNode(_Provision, frozen=True, kw_only=True):
    image: Image | None = None
    """Where it is left out, the profile names one."""
    root_device: RootDeviceHints | None = None
    user_data: Data | None = None
    """cloud-init's; it is stored as it is until the workflow is forgotten: put no secret into it."""
    meta_data: Data | None = None
    network_data: Data | None = None

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> list[Issue]:
        image = raw.get("image")
        found = super().faults(raw)
        if isinstance(image, Mapping) and not (image.get("sha256") or image.get("sha512")):
            found.append(Issue("image", "has no checksum", "name the sha256 or sha512 that its maker publishes"))
        return found + login_faults(image, "image")


class ReleaseNode(_Provision, frozen=True, kw_only=True):
    pass


class RescueNode(_Provision, frozen=True, kw_only=True):
    pass


class AbortNode(Request, frozen=True, kw_only=True):
    node_id: Reference
    reason: Reason | None = None
    """Kept as the node's cause of failure."""


class RecoverNode(Request, frozen=True, kw_only=True):
    node_id: Reference
    as_it_is: bool = False
    """A machine that was in service is so again by the operator's word, where its own system's agent does not show
    it: it has none, or cannot reach the control plane."""


class MaintainNode(Request, frozen=True, kw_only=True):
    node_id: Reference
    maintenance: Literal["on", "off"]
    reason: Reason | None = None


class ProvisionView(View, frozen=True, kw_only=True):
    state: str
    """enrolled, commissioning, available, deploying, deployed, releasing, rescuing, rescue, recovering, failed,
    maintenance."""
    since: datetime
    verb: str | None
    """What moves it, or moved it last."""
    workflow_id: str | None
    """By which workflow."""
    aborting: bool
    error: WorkflowError | None
    """Why it failed; while it is in rescue, what it was rescued from."""
    residue: str | None
    """changed or erasing: what workflows that did not end well have left."""
    behind_maintenance: str | None
    """The state that maintenance stands in for."""
    maintenance_reason: str | None
    profiles: dict[str, str]
    """The node's own, by verb."""
    remediate: bool


def profile_faults(profiles: object) -> list[Issue]:
    """Verbs that there are not."""
    if not isinstance(profiles, Mapping):
        return []
    return [
        Issue(f"profiles.{verb}", f"there is no verb {verb!r}", f"verbs: {', '.join(_VERBS)}")
        for verb in profiles
        if verb not in _VERBS
    ]
