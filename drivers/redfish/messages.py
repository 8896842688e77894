"""What a BMC says in an answer, in all the shapes it is said in, and what kind of refusal it is.

The shape that DSP0266 wants is `{"error": {"code", "message", "@Message.ExtendedInfo": [{MessageId, Message, …}]}}`.
Seen besides: the list as one object (Dell), at the top level or beside a property without any `error`
(stmcginnis/gofish issues 290 and 498), no `error.code` (Launchpad bug 2071945), `Messages` with `MessageID`
(HPE iLO 4), plain text.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from drivers.redfish.document import dig, text
from protocol.errors import BmcMessage

__all__ = [
    "Note",
    "bmc_messages",
    "is_committed",
    "is_license",
    "is_login_refused",
    "is_not_writable",
    "is_password_change",
    "is_session_limit",
    "is_transient",
    "is_unsupported",
    "is_value_refused",
    "mentions",
    "notes_of",
    "place_named",
]

_INFO = "@Message.ExtendedInfo"
_LIMIT = 20
_DEEPEST = 4
_LONGEST_ID = 200
_LONGEST_ADVICE = 500
_MOST_NAMES, _LONGEST_NAME = 256, 1_000
"""Of one message: what is searched for paths must not be endless."""


@dataclass(frozen=True, slots=True)
class Note:
    """One message of an answer."""

    id: str
    text: str
    properties: tuple[str, ...] = ()
    """Related properties and message arguments: what the message is about."""
    resolution: str = ""

    @property
    def key(self) -> str:
        """The message's own name without registry and version: `Base.1.8.PropertyMissing` → `PropertyMissing`."""
        return self.id.rpartition(".")[2]


def notes_of(document: object) -> list[Note]:
    """Every message of an answer's body, each once; empty where it says nothing."""
    notes = list(dict.fromkeys(_found(document)))
    return notes[:_LIMIT]


def bmc_messages(notes: Iterable[Note]) -> list[BmcMessage]:
    return [BmcMessage(note.id, note.text, _advice(note.resolution)) for note in notes]


def is_license(notes: Iterable[Note]) -> bool:
    """A licence is missing (Supermicro SMC.1.0.OemLicenseNotPassed and "Not licensed … DCMS", HPE LicenseKeyRequired,
    Dell LIC…): metal3-io/ironic-image issue 688, check_redfish issue 74, fwupd pull request 5128."""
    return any(
        "license" in note.key.lower() or note.key.upper().startswith("LIC") or _LICENSE_WORDS.search(note.text)
        for note in notes
    )


def is_password_change(notes: Iterable[Note]) -> bool:
    """The password is right but must be changed before anything else is allowed (DSP0266, password change)."""
    return any(note.key == "PasswordChangeRequired" for note in notes)


def is_session_limit(notes: Iterable[Note]) -> bool:
    """All session slots are taken: Dell RAC0218, or the Base registry's own word."""
    return any(
        note.key in _SESSION_LIMIT
        or "maximum number of user sessions" in note.text.lower()
        or "session limit" in note.text.lower()
        for note in notes
    )


def is_login_refused(notes: Iterable[Note]) -> bool:
    """A wrong user or password that was answered with a status that does not say so (HPE iLO 4: 400)."""
    return any(note.key in _LOGIN_REFUSED or _LOGIN_REFUSED_WORDS.search(note.text) for note in notes)


def is_transient(notes: Iterable[Note]) -> bool:
    """The same request may be taken in a while: the host or the BMC is between two states.

    Sources: OpenStack sushy's retry on iLO's "not ready", Launchpad bugs 2162995 (iDRAC 10, On after off) and 2136275
    (iLO during POST), Dell SYS518.
    """
    return any(note.key in _TRANSIENT or note.key.endswith(_TRANSIENT_ENDINGS) for note in notes)


def is_committed(notes: Iterable[Note]) -> bool:
    """A change that waits for a restart, or its job, refuses any further one (Dell SYS011 and LC068:
    quadsproject/quads issue 726, dell/iDRAC-Redfish-Scripting issue 249)."""
    return any(note.key in _COMMITTED or _COMMITTED_WORDS.search(note.text) for note in notes)


def is_unsupported(notes: Iterable[Note]) -> bool:
    """It will never be taken by this BMC."""
    return any(note.key in _UNSUPPORTED for note in notes)


def is_not_writable(notes: Iterable[Note]) -> bool:
    """The property cannot be written *here*: another resource may own it (AMI, iDRAC 10: MAAS LP2160731)."""
    return any(
        note.key in _NOT_WRITABLE or "read-only" in note.text.lower() or "read only" in note.text.lower()
        for note in notes
    )


def is_value_refused(notes: Iterable[Note]) -> bool:
    """The value is not one that the BMC takes, whatever it listed."""
    return any(note.key in _VALUE_REFUSED for note in notes)


def mentions(notes: Iterable[Note], name: str) -> bool:
    """Whether a message is about the property or parameter `name`, by its related properties, arguments or text."""
    wanted = name.lower()
    for note in notes:
        about = [item.lstrip("#/").rpartition("/")[2].lower() for item in note.properties]
        if wanted in about or wanted in note.text.lower() or wanted in note.resolution.lower():
            return True
    return False


def place_named(notes: Iterable[Note], below: str) -> str | None:
    """The path below `below` that a refusal names as the right place (AMI: OperationSupportedInFutureStateURI names
    `…/SD`; Tacklebox issues 111 and 144). Anything else that is named is not followed."""
    for note in notes:
        if note.key in _NOT_WRITABLE:
            for word in (*note.properties, note.text, note.resolution):
                for found in _PATH.findall(word):
                    if found.lower().startswith(f"{below.rstrip('/').lower()}/"):
                        return str(found)
    return None


def _advice(resolution: str) -> str:
    """Registries write "None" where nothing is to be done (DSP0268, Base)."""
    advice = resolution.strip()
    return "" if advice.rstrip(".").lower() in ("", "none", "n/a") else advice[:_LONGEST_ADVICE]


_PATH = re.compile(r"/redfish/v1/[\w./:~-]*[\w~]")
_LICENSE_WORDS = re.compile(
    r"not licen[sc]ed|licence|licen[sc]e key|requires? an? (\w+ )?licen[sc]e|\bDCMS\b|\bSFT-(OOB|DCMS|SUM|SDDC)"
    r"|licen[sc]e (\S+ )?(is|was|has) (required|missing|expired|not)",
    re.IGNORECASE,
)
_SESSION_LIMIT = {"RAC0218", "SessionLimitExceeded", "CreateLimitReachedForResource", "NoSessionsAvailable"}
_LOGIN_REFUSED = {
    "UnauthorizedLoginAttempt",
    "NoValidSession",
    "ResourceAtUriUnauthorized",
    "AccessUnauthorized",
    "AuthenticationFailed",
    "InvalidCredentials",
}
_LOGIN_REFUSED_WORDS = re.compile(
    r"(invalid|incorrect|wrong|bad) (login|user|username|password|credential)"
    r"|(authentication|login|logon)( attempt)?( has)? (failed|failure|was refused|denied)"
    r"|account (is )?(locked|disabled)",
    re.IGNORECASE,
)
_TRANSIENT = {
    "ActionParameterValueConflict",
    "InvalidOperationForSystemState",
    "PropertyValueResourceConflict",
    "ResourceInStandby",
    "ResourceInUse",
    "ServiceInUnknownState",
    "ServiceShuttingDown",
    "ServiceTemporarilyUnavailable",
    "SYS518",
    "UnableToModifyDuringSystemPOST",
}
_TRANSIENT_ENDINGS = ("NotReady", "TemporarilyUnavailable", "AlreadyInState")
_COMMITTED = {"SYS011", "LC068"}
_COMMITTED_WORDS = re.compile(
    r"already (been )?committed|pending (attribute|configuration) changes"
    r"|(configuration|pending|existing) job (already exists|is (already )?(scheduled|pending|in progress))",
    re.IGNORECASE,
)
_UNSUPPORTED = {
    "ActionDeprecated",
    "ActionNotSupported",
    "ActionNotSupportedOnPlatform",
    "NotSupported",
    "OperationNotAllowed",
    "UnsupportedOperation",
}
_NOT_WRITABLE = {"OperationSupportedInFutureStateURI", "PropertyNotWritable", "PropertyUnknown", "PropertyNotUpdated"}
_VALUE_REFUSED = {
    "ActionParameterNotSupported",
    "ActionParameterValueError",
    "ActionParameterValueFormatError",
    "ActionParameterValueNotInList",
    "ActionParameterValueTypeError",
    "PropertyValueError",
    "PropertyValueIncorrect",
    "PropertyValueNotInList",
    "UnsupportedResetType",
}


def _found(document: object) -> Iterator[Note]:
    if isinstance(document, str):
        yield Note("", document.strip()[:500])
        return
    if not isinstance(document, dict):
        return
    error = document.get("error")
    said = list(_listed(dig(error, _INFO)))
    said += _beside_properties(document)
    said += _listed(document.get("Messages"))
    if isinstance(error, dict) and not any(note.text for note in said):
        # The list may hold bare ids, and the words be beside it (OpenStack's sushy-tools).
        summary = Note((text(error, "code") or "")[:_LONGEST_ID], (text(error, "message") or "")[:500])
        if summary.text:
            said = [summary, *(note for note in said if note.id != summary.id or note.properties)]
        elif not said and summary.id:
            said = [summary]
    elif not said and isinstance(error, str):
        said = [Note("", error.strip()[:500])]
    elif not said and isinstance(document.get("message"), str):
        said = [Note(text(document, "code") or "", str(document["message"])[:500])]
    yield from said


def _beside_properties(document: dict[str, Any], depth: int = 0) -> Iterator[Note]:
    """The messages beside the properties of a document, and of the objects in it (`Boot`, `Attributes`)."""
    for key, value in document.items():
        if isinstance(key, str) and key.endswith(_INFO):
            yield from _listed(value, about=key.removesuffix(_INFO))
        elif isinstance(value, dict) and key != "error" and depth < _DEEPEST:
            yield from _beside_properties(value, depth + 1)


def _listed(value: Any, about: str = "", depth: int = 0) -> Iterator[Note]:
    if isinstance(value, list):
        for item in value if depth < _DEEPEST else ():
            yield from _listed(item, about, depth + 1)
    elif isinstance(value, str):
        yield Note("", value.strip()[:500])
    elif isinstance(value, dict):
        identifier = text(value, "MessageId") or text(value, "MessageID") or ""
        words = text(value, "Message") or text(value, "Description") or ""
        related = value.get("RelatedProperties") or value.get("MessageArgs") or []
        arguments = value.get("MessageArgs") or []
        properties = [item for listed in (related, arguments) if isinstance(listed, list) for item in listed]
        if about:
            properties.append(about)
        if identifier or words:
            names = tuple(dict.fromkeys(str(item)[:_LONGEST_NAME] for item in properties[:_MOST_NAMES]))
            yield Note(identifier[:_LONGEST_ID], words[:500], names, text(value, "Resolution") or "")
