"""Firmware: what runs where, and how it is replaced."""

from enum import StrEnum

from protocol.shapes import Arguments, Result
from protocol.shapes.bios import ApplyTime

__all__ = [
    "FirmwareComponent",
    "FirmwareReading",
    "FirmwareUpdate",
    "Transport",
    "UpdateFirmware",
    "UpdateFirmwareResult",
    "UpdateOutcome",
]


class Transport(StrEnum):
    """How an image gets to the BMC."""

    AUTO = "auto"
    """Whatever this BMC has, the safest first."""
    SIMPLE = "simple"
    """The BMC fetches it (Redfish SimpleUpdate)."""
    MULTIPART = "multipart"
    """It is sent as a form with its parameters (Redfish MultipartHttpPushUri)."""
    PUSH = "push"
    """It is sent as it is (Redfish HttpPushUri)."""


class FirmwareComponent(Result, frozen=True, kw_only=True):
    name: str
    version: str | None = None
    updateable: bool | None = None
    id: str | None = None
    path: str | None = None
    """Where the BMC shows it; what an update names as its target."""
    software_id: str | None = None
    state: str | None = None
    related: list[str] = []
    """Paths of what it belongs to, such as the manager or the BIOS."""
    active: bool = True
    """False for a further copy: staged, backup, roll-back or shown twice. It does not say what runs."""


class FirmwareReading(Result, frozen=True, kw_only=True):
    components: list[FirmwareComponent]


class FirmwareUpdate(Arguments, frozen=True, kw_only=True):
    """One update of a list; the fields are those of `UpdateFirmware`."""

    image: str
    """An address that the BMC can fetch, or a file on the site host (`file:///…`)."""
    targets: list[str] = []
    """Ids, names or paths of the components that it is for."""
    expect_version: str | None = None
    """What they must show in the end."""


class UpdateFirmware(Arguments, frozen=True, kw_only=True):
    """One update, or a list of them that ends at the first failure."""

    image: str | None = None
    """An address that the BMC can fetch, or a file on the site host (`file:///…`)."""
    targets: list[str] = []
    """Ids, names or paths of the components that it is for. Without them the image decides; with `expectVersion` the
    component is then found by its version, so name the targets where two may have the same."""
    expect_version: str | None = None
    """What the components must show in the end. Where they show it already, nothing is sent."""
    apply_time: ApplyTime = ApplyTime.IMMEDIATE
    """When the BMC puts it into force, where the BMC lets that be chosen."""
    transport: Transport = Transport.AUTO
    """How the image gets to the BMC."""
    updates: list[FirmwareUpdate] = []
    """In place of `image`, `targets` and `expectVersion`: several updates, one after the other."""

    def __post_init__(self) -> None:
        if self.updates and (self.image is not None or self.targets or self.expect_version is not None):
            raise ValueError("updates stands in place of image, targets and expectVersion: give them inside it")
        if self.image is None and not self.updates:
            raise ValueError("image is required, or updates with at least one image")

    @property
    def wanted(self) -> list[FirmwareUpdate]:
        """The updates in their order; one where no list was given."""
        if self.updates or self.image is None:
            return self.updates
        return [FirmwareUpdate(image=self.image, targets=self.targets, expect_version=self.expect_version)]


class UpdateOutcome(Result, frozen=True, kw_only=True):
    """What became of one update."""

    image: str
    changed: bool = True
    """False where the expected version was there already, so that nothing was sent."""
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}
    task: str | None = None
    reset_owed: bool = False
    """It waits for a reset of the host, or of what it is for."""
    transport: Transport | None = None


class UpdateFirmwareResult(Result, frozen=True, kw_only=True):
    before: dict[str, str | None]
    """Versions by the component's id, of the targets, else of what has changed."""
    after: dict[str, str | None]
    """The same, under the ids from before."""
    task: str | None = None
    reset_owed: bool = False
    changed: bool = True
    transport: Transport | None = None
    updates: list[UpdateOutcome] = []
    """Each on its own, where a list was asked for."""
