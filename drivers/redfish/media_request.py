"""The body of an InsertMedia request, and how it grows by what the BMC refuses. Pure.

The first body holds the image only: Supermicro refuses more (stmcginnis/gofish issue 212). What a BMC misses
is added once: by the name that it gives (sushy's notes on TransferProtocolType; Launchpad bug 2071945; gofish issue
290), else in a fixed order.
"""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from drivers.redfish import messages
from drivers.redfish.document import Document
from drivers.redfish.media_slots import MEDIA_TYPES, Slot
from drivers.redfish.messages import Note
from protocol.shapes.virtual_media import MediaDevice

__all__ = ["ImageAddress", "InsertRequest"]

_PROTOCOLS = {
    "http": "HTTP",
    "https": "HTTPS",
    "nfs": "NFS",
    "smb": "CIFS",
    "cifs": "CIFS",
    "ftp": "FTP",
    "scp": "SCP",
}
_NOBODY = "anonymous"
_MISSING = {"PropertyMissing", "ActionParameterMissing", "CreateFailedMissingReqProperties"}
_UNKNOWN = {"PropertyUnknown", "ActionParameterUnknown", "ActionParameterNotSupported", "PropertyNotWritable"}
_GENERAL = {"GeneralError", "InternalError", ""}
_LADDER = ("TransferProtocolType", "TransferMethod", "UserName", "MediaType", "Inserted", "WriteProtected")


@dataclass(frozen=True, slots=True)
class ImageAddress:
    """An image's address without the user and password that it may have been given with."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, address: str) -> "ImageAddress":
        """Raises ValueError that says what an address looks like."""
        form = "image is an address that the BMC can reach: http://, https://, nfs:// or smb://host/file"
        try:
            parts = urlsplit(address.strip())
            _ = parts.port
        except ValueError:
            raise ValueError(form) from None
        unwritten = not address.strip().isprintable() or " " in address.strip()
        if parts.scheme.lower() not in _PROTOCOLS or not parts.hostname or not parts.path.strip("/") or unwritten:
            raise ValueError(form)
        if parts.username is None:
            return cls(address.strip())
        host = parts.netloc.rpartition("@")[2]
        bare = urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
        return cls(bare, unquote(parts.username), unquote(parts.password or ""))

    @property
    def protocol(self) -> str:
        return _PROTOCOLS[urlsplit(self.url).scheme.lower()]


@dataclass(slots=True)
class InsertRequest:
    """One insertion in the making: `body` is what to send next."""

    address: ImageAddress
    slot: Slot
    device: MediaDevice
    write_protected: bool = True
    body: Document = field(init=False)
    _tried: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.body = {"Image": self.address.url}
        if self.address.user is not None:
            self._add("UserName")
        if not self.write_protected:
            self._add("WriteProtected")

    def fill_for_patch(self) -> None:
        """The body for a slot without an action, whose properties are written (stmcginnis/gofish issue 529)."""
        self._add("Inserted")
        self._add("WriteProtected")

    def after_named_refusal(self, notes: list[Note]) -> bool:
        """Changes the body where the BMC names what it misses, or what it does not take. False where it does not."""
        unwanted = [name for name in self.body if name != "Image" and self._is_unwanted(name, notes)]
        if unwanted:
            for name in unwanted:
                del self.body[name]
            return True
        named = [name for name in _LADDER if name not in self._tried and self._is_missed(name, notes)]
        for name in named:
            self._add(name)
        return bool(named)

    def after_refusal(self, notes: list[Note]) -> bool:
        """Changes the body by what a 400 says, or else by the ladder. False where nothing is left to try."""
        if self.after_named_refusal(notes):
            return True
        if not all(note.key in _GENERAL or note.key in _MISSING for note in notes):
            return False
        following = next((name for name in _LADDER if name not in self._tried), None)
        if following is None:
            return False
        if following == "Inserted":
            self.body = {"Image": self.address.url}
        self._add(following)
        return True

    def _is_missed(self, name: str, notes: list[Note]) -> bool:
        says_missing = [note for note in notes if note.key in _MISSING or note.key in _GENERAL]
        if messages.mentions(says_missing, name):
            return True
        return name == "UserName" and messages.mentions(says_missing, "Password")

    def _is_unwanted(self, name: str, notes: list[Note]) -> bool:
        return messages.mentions([note for note in notes if note.key in _UNKNOWN], name)

    def _add(self, name: str) -> None:
        self._tried.add(name)
        match name:
            case "TransferProtocolType":
                self.body[name] = self.address.protocol
            case "TransferMethod":
                self.body[name] = "Stream"
            case "UserName":
                self.body["UserName"] = self.address.user if self.address.user is not None else _NOBODY
                self.body["Password"] = self.address.password if self.address.password is not None else _NOBODY
            case "MediaType":
                kinds = [kind for kind in MEDIA_TYPES[self.device] if kind in self.slot.media_types]
                self.body[name] = kinds[0] if kinds else MEDIA_TYPES[self.device][0]
            case "Inserted":
                self.body[name] = True
            case _:
                self.body["WriteProtected"] = self.write_protected
