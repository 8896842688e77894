"""Nodes: machines, and how each one's BMC is reached."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from control_plane.api.shapes.common import Name, PageRequest, Reference, Request, View, id_cursor
from control_plane.api.shapes.metal import NodeProfiles, ProvisionView, profile_faults
from protocol.addresses import Address, Scheme, TlsMode, TlsPolicy
from protocol.errors import Issue
from protocol.operations import CONCERNS, DRIVERS

__all__ = [
    "BmcInput",
    "BmcView",
    "CreateNode",
    "DeleteNode",
    "DriverName",
    "GetNode",
    "ListNodes",
    "NodeDeleted",
    "NodeList",
    "NodeView",
    "UpdateNode",
]

_MOST_LABELS = 64
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")

DriverName = Literal["redfish", "ipmi", "ssh", "linux", "simulated", "auto"]
AddressText = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]*$(?!\n)")]
CredentialRef = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$(?!\n)", max_length=128)]
TlsText = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
Labels = dict[str, Annotated[str, Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]]
Switch = Literal["on", "off"]
Concerns = Annotated[dict[str, str], Meta(max_length=len(CONCERNS))]


class _Bmc(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    driver: DriverName | UnsetType = UNSET
    """By the address where it is left out."""
    credential_ref: CredentialRef | UnsetType | None = UNSET
    """The name of a credential in the site agent's vault: the credential itself never comes here."""
    tls: TlsText | UnsetType = UNSET
    """verify, ca:/path/on/the/site/host.pem, sha256:<hex>, first-use or none."""


class BmcInput(_Bmc, frozen=True, kw_only=True):
    address: AddressText


class BmcChange(_Bmc, frozen=True, kw_only=True):
    address: AddressText | UnsetType = UNSET


class _NodeRequest(Request, frozen=True, kw_only=True):
    checks = {"bmc.address": Address.parse, "bmc.tls": TlsPolicy.parse}

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> list[Issue]:
        beyond = _driver_faults(raw.get("drivers")) + _label_faults(raw.get("labels"))
        return super().faults(raw) + beyond + profile_faults(raw.get("profiles"))


class CreateNode(_NodeRequest, frozen=True, kw_only=True):
    name: Name
    site_id: Reference
    bmc: BmcInput
    labels: Labels = {}
    drivers: Concerns = {}
    """Each concern's driver, where it is not the BMC's own."""
    profiles: NodeProfiles = {}
    """The profile that a verb runs on this machine, such as deploy=debian-raid."""
    remediate: Switch = "off"

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> list[Issue]:
        bmc = raw.get("bmc")
        plain = plain_http_faults(bmc.get("address"), bmc.get("tls")) if isinstance(bmc, Mapping) else []
        return super().faults(raw) + plain


class GetNode(Request, frozen=True, kw_only=True):
    node_id: Reference


class ListNodes(PageRequest, frozen=True, kw_only=True):
    site_id: Reference | None = None

    checks = {"cursor": id_cursor("node")}


class UpdateNode(_NodeRequest, frozen=True, kw_only=True):
    """What is left out stays as it is; `labels`, `drivers` and `profiles` are replaced whole."""

    node_id: Reference
    name: Name | UnsetType = UNSET
    site_id: Reference | UnsetType = UNSET
    bmc: BmcChange | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET
    drivers: Concerns | UnsetType = UNSET
    profiles: NodeProfiles | UnsetType = UNSET
    remediate: Switch | UnsetType = UNSET


class DeleteNode(Request, frozen=True, kw_only=True):
    node_id: Reference


class BmcView(View, frozen=True, kw_only=True):
    address: str
    driver: str
    credential_ref: str | None
    tls: str


class NodeView(View, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    site_id: str
    site: str
    """The site's name."""
    state: str
    """Its provision state, such as available or deployed; `provision` tells more."""
    power: str
    """on, off, poweringOn, poweringOff or unknown, as the site's agent has last seen it; unknown is never off."""
    health: str
    """ok, warning, critical or unknown."""
    seen_at: datetime | None
    """When it was first seen so; null while it is not seen: nobody has looked yet, or it cannot be asked."""
    seen_by: str | None
    """What led to the look: poll, stream or push."""
    watched: bool
    """The agent that saw it is connected: what is said is so now."""
    trouble: str | None
    """Why the machine cannot be asked."""
    trouble_since: datetime | None
    """Since when it cannot be asked."""
    labels: dict[str, str]
    found_labels: dict[str, str]
    """What inventories have found; `labels` stand over them."""
    drivers: dict[str, str]
    bmc: BmcView
    provision: ProvisionView
    created_at: datetime
    updated_at: datetime


class NodeList(View, frozen=True, kw_only=True):
    items: list[NodeView]
    cursor: str | None


class NodeDeleted(View, frozen=True, kw_only=True):
    id: str


def plain_http_faults(address: object, tls: object) -> list[Issue]:
    """Plain HTTP shows the password to whoever listens: it is taken only to a loopback address, or with consent."""
    if not isinstance(address, str):
        return []
    try:
        parsed = Address.parse(address)
    except ValueError:
        return []
    if parsed.scheme is not Scheme.HTTP or parsed.is_loopback or tls == TlsMode.NONE:
        return []
    return [
        Issue("bmc.tls", "http:// shows the password to whoever listens: write https://, or consent with tls: none")
    ]


def _driver_faults(drivers: object) -> list[Issue]:
    if not isinstance(drivers, Mapping):
        return []
    issues = [
        Issue(f"drivers.{concern}", f"there is no concern {concern!r}", f"concerns: {', '.join(CONCERNS)}")
        for concern in drivers
        if concern not in CONCERNS
    ]
    issues += [
        Issue(f"drivers.{concern}", f"{driver!r} is not one of {', '.join(DRIVERS)}")
        for concern, driver in drivers.items()
        if isinstance(driver, str) and driver not in DRIVERS
    ]
    return issues


def _label_faults(labels: object) -> list[Issue]:
    if not isinstance(labels, Mapping):
        return []
    if len(labels) > _MOST_LABELS:
        return [Issue("labels", f"holds {len(labels)} labels: {_MOST_LABELS} are the most")]
    return [
        Issue(f"labels.{key[:80]}", "is no label's name: letters and digits, then also . _ / and -, 63 at the most")
        for key in labels
        if not _LABEL.fullmatch(key)
    ]
