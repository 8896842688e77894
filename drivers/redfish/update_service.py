"""What an update service offers, and what is sent to it. Pure.

Vendors offer very different sets: only a push (OpenBMC), only a form (DGX), only SimpleUpdate (Gigabyte, HPE Cray,
Intel), a push of their own form (HPE iLO). Nothing is sent that is not offered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from drivers.redfish import messages
from drivers.redfish.document import (
    Document,
    action,
    allowed_values,
    allowed_values_of_action_info,
    boolean,
    dig,
    link_target,
    number,
    path_of,
    same_path,
    text,
)
from drivers.redfish.image_source import Image
from drivers.redfish.manners import Manners
from drivers.redfish.messages import Note
from protocol.shapes.bios import ApplyTime
from protocol.shapes.firmware import Transport

__all__ = ["SIMPLE_UPDATE", "Progress", "UpdateService", "after_refusal", "preferred", "simple_body", "why_not"]

SIMPLE_UPDATE = "UpdateService.SimpleUpdate"
_APPLY = "@Redfish.OperationApplyTime"
_APPLY_TIMES = {ApplyTime.IMMEDIATE: "Immediate", ApplyTime.ON_RESET: "OnReset"}
_MISSING = frozenset({"PropertyMissing", "ActionParameterMissing", "GeneralError", ""})
_UNKNOWN = frozenset(
    {"PropertyUnknown", "ActionParameterUnknown", "ActionParameterNotSupported", "PropertyNotWritable"}
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an update is, as the service itself shows it (HPE iLO, where the answer named no task)."""

    state: str
    percent: float | None
    words: list[Note] = field(default_factory=list)

    @property
    def is_working(self) -> bool:
        return self.state.lower() not in ("idle", "complete", "error")

    @property
    def has_failed(self) -> bool:
        return self.state.lower() == "error"


@dataclass(frozen=True, slots=True)
class UpdateService:
    """The service as one reading showed it, with the parameters of its action where they are described."""

    path: str
    document: Document
    manners: Manners
    info: Document | None = None

    @property
    def is_on(self) -> bool:
        return boolean(self.document, "ServiceEnabled") is not False

    @property
    def simple_target(self) -> str | None:
        offered = action(self.document, SIMPLE_UPDATE)
        return link_target(offered) if offered is not None else None

    @property
    def protocols(self) -> list[str]:
        """What SimpleUpdate fetches over; empty where it does not say."""
        return self._listed("TransferProtocol")

    @property
    def takes_targets(self) -> bool:
        """Whether SimpleUpdate has Targets; one that describes its parameters and leaves them out has not."""
        described = dig(self.info, "Parameters")
        if not isinstance(described, list) or not described:
            return True
        return any(text(item, "Name") == "Targets" for item in described) or bool(self.target_values)

    @property
    def target_values(self) -> list[str]:
        return self._listed("Targets")

    @property
    def user_parameter(self) -> str:
        """`Username` by the schema; AMI describes `User`."""
        described = dig(self.info, "Parameters")
        names = [text(item, "Name") for item in described] if isinstance(described, list) else []
        return "User" if "User" in names and "Username" not in names else "Username"

    @property
    def multipart_path(self) -> str | None:
        return _place(self.document, "MultipartHttpPushUri")

    @property
    def push_path(self) -> str | None:
        return _place(self.document, "HttpPushUri")

    @property
    def push_apply_time(self) -> str | None:
        """What a plain push goes by now."""
        return text(self.document, "HttpPushUriOptions", "HttpPushUriApplyTime", "ApplyTime")

    @property
    def push_targets(self) -> list[str] | None:
        """What a plain push is for now; None where the service has no such setting."""
        found = dig(self.document, "HttpPushUriTargets")
        return [item for item in found if isinstance(item, str)] if isinstance(found, list) else None

    @property
    def is_claimable(self) -> bool:
        return isinstance(dig(self.document, "HttpPushUriTargetsBusy"), bool)

    @property
    def is_claimed(self) -> bool:
        return boolean(self.document, "HttpPushUriTargetsBusy") is True

    @property
    def largest(self) -> int | None:
        """Bytes of an image at most."""
        found = number(self.document, "MaxImageSizeBytes")
        return int(found) if found is not None and found > 0 else None

    @property
    def progress(self) -> Progress | None:
        """None where this vendor shows none."""
        if not self.manners.update_state:
            return None
        place = dig(self.document, *self.manners.update_state)
        state = text(place, "State")
        if state is None:
            return None
        said = messages.notes_of({"Messages": [dig(place, "Result")]})
        return Progress(state, number(place, "FlashProgressPercent"), said)

    def apply_value(self, transport: Transport, wanted: ApplyTime) -> str | None:
        """What to send for an apply time; None where the service takes none there, or not this one."""
        word = _APPLY_TIMES[wanted]
        return word if word in self.apply_times(transport) else None

    def apply_times(self, transport: Transport) -> list[str]:
        """The apply times that a way takes; empty where it takes none."""
        match transport:
            case Transport.SIMPLE:
                return _texts(
                    dig(action(self.document, SIMPLE_UPDATE), "@Redfish.OperationApplyTimeSupport", "SupportedValues")
                )
            case Transport.MULTIPART:
                annotation = "MultipartHttpPushUri@Redfish.OperationApplyTimeSupport"
                listed = _texts(dig(self.document, annotation, "SupportedValues"))
                return listed or list(self.manners.push_apply_times)
            case Transport.PUSH if self.manners.push_form == "redfish" and self.push_apply_time is not None:
                options = dig(self.document, "HttpPushUriOptions", "HttpPushUriApplyTime")
                return allowed_values(options, "ApplyTime") or list(_APPLY_TIMES.values())
        return []

    def carries_targets(self, transport: Transport, targets: Sequence[str]) -> bool:
        """Whether a way tells the BMC what the image is for."""
        match transport:
            case Transport.SIMPLE:
                return self.takes_targets
            case Transport.MULTIPART:
                return True
        return self.manners.push_form == "redfish" and self.push_targets is not None

    def _listed(self, name: str) -> list[str]:
        offered = action(self.document, SIMPLE_UPDATE) or {}
        return allowed_values(offered, name) or allowed_values_of_action_info(self.info, name)


def preferred(service: UpdateService, image: Image, targets: Sequence[str]) -> list[Transport]:
    """The ways in the order in which they are tried: first those that tell the BMC what the image is for.

    An address is fetched by the BMC itself, a file is sent. OpenBMC takes form and plain push at one address, and
    wants a target in the form: without one it gets the image as it is.
    """
    simple, multipart, push = Transport.SIMPLE, Transport.MULTIPART, Transport.PUSH
    multipart_path, push_path = service.multipart_path, service.push_path
    pushes = [multipart, push]
    if not targets and push_path is not None and multipart_path is not None and same_path(multipart_path, push_path):
        pushes = [push, multipart]
    order = [*pushes, simple] if image.path is not None else [simple, *pushes]
    if service.manners.push_form != "redfish":
        order = [way for way in order if way is not push] + [push]
    if targets:
        order.sort(key=lambda way: not service.carries_targets(way, targets))
    return order


def why_not(
    transport: Transport,
    service: UpdateService,
    image: Image,
    targets: Sequence[str],
    apply_time: ApplyTime,
    *,
    can_offer: bool,
) -> str | None:
    """Why a way is none for this image; None where it is one."""
    offered = {
        Transport.SIMPLE: service.simple_target,
        Transport.MULTIPART: service.multipart_path,
        Transport.PUSH: service.push_path,
    }[transport]
    if offered is None:
        return "this BMC has none"
    if apply_time is ApplyTime.ON_RESET and service.apply_value(transport, apply_time) is None:
        return f"it takes {' or '.join(service.apply_times(transport)) or 'no'} apply time, not OnReset"
    if transport is Transport.PUSH and service.manners.push_form == "store":
        return "this BMC only stores what is pushed so"
    if transport is not Transport.SIMPLE:
        return (
            None if image.path is not None or image.is_on_the_web else "only the BMC itself could fetch this address"
        )
    protocol = image.protocol or "HTTP"
    if service.protocols and protocol not in service.protocols:
        return f"it fetches over {', '.join(service.protocols)}, not over {protocol}"
    if image.path is not None and not can_offer:
        return "it fetches the image itself, and only a site agent can offer it a file: give an http:// address"
    strange = [target for target in targets if not _is_listed(target, service.target_values)]
    if strange and service.target_values:
        return f"it takes the targets {', '.join(service.target_values)} only"
    return None


def simple_body(
    service: UpdateService, image: Image, url: str, targets: Sequence[str], apply_time: ApplyTime
) -> Document:
    """The parameters of SimpleUpdate: only those that the service is known to have."""
    body: Document = {"ImageURI": url}
    protocol = url.partition(":")[0].upper() if image.path is not None else image.protocol
    if protocol in service.protocols:
        body["TransferProtocol"] = protocol
    if targets and service.takes_targets:
        body["Targets"] = list(targets)
    if image.user is not None:
        body |= {service.user_parameter: image.user, "Password": image.password or ""}
    value = service.apply_value(Transport.SIMPLE, apply_time)
    if value is not None:
        body[_APPLY] = value
    return body


def after_refusal(body: Document, notes: list[Note], protocol: str | None) -> Document | None:
    """Other parameters after a 400 that names one: an unknown one is left out, a missing protocol is added.

    None where nothing can be mended; what the update is to apply to and when is left out only if the BMC has no such
    parameter.
    """
    unknown = [note for note in notes if note.key in _UNKNOWN]
    for name in ("TransferProtocol", "Targets", _APPLY):
        if name in body and messages.mentions(unknown, name):
            return {key: value for key, value in body.items() if key != name}
    missing = [note for note in notes if note.key in _MISSING]
    if protocol is not None and "TransferProtocol" not in body and messages.mentions(missing, "TransferProtocol"):
        return {**body, "TransferProtocol": protocol}
    return None


def _is_listed(target: str, listed: Sequence[str]) -> bool:
    return any(same_path(target, value) for value in listed)


def _place(document: Document, name: str) -> str | None:
    found = dig(document, name)
    return path_of(found) if isinstance(found, str) and found.strip() else None


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
