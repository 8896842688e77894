"""IPMI commands by name, and what their completion codes mean for the caller.

Source: IPMI 2.0 revision 1.1, table 5-2 (generic completion codes), appendix G (command numbers).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from drivers.ipmi.packets import Message
from protocol.errors import BmcMessage, ErrorCode, OperationError

__all__ = [
    "BUSY_CODES",
    "NOT_BEGUN_CODES",
    "UNKNOWN_PARAMETER_CODES",
    "Command",
    "NetFn",
    "completion_text",
    "refusal",
    "unanswered",
]


class NetFn(IntEnum):
    CHASSIS = 0x00
    SENSOR = 0x04
    APP = 0x06
    STORAGE = 0x0A
    TRANSPORT = 0x0C


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its data. An `act` is sent once only, whatever happens; anything else may be sent again."""

    name: str
    netfn: int
    number: int
    data: bytes = b""
    act: bool = False
    lun: int = 0
    codes: dict[int, str] = field(default_factory=dict, hash=False)
    """Completion codes that mean something else, or only something, for this command."""

    def with_data(self, data: bytes, lun: int = 0) -> "Command":
        return replace(self, data=data, lun=lun)


_GENERIC_TEXTS: Final[dict[int, str]] = {
    0x00: "completed",
    0xC0: "node busy",
    0xC1: "invalid command",
    0xC2: "command invalid for this LUN",
    0xC3: "timeout while processing the command",
    0xC4: "out of space",
    0xC5: "reservation cancelled or invalid reservation id",
    0xC6: "request data truncated",
    0xC7: "request data length invalid",
    0xC8: "request data field length limit exceeded",
    0xC9: "parameter out of range",
    0xCA: "cannot return the number of requested data bytes",
    0xCB: "requested sensor, data or record not present",
    0xCC: "invalid data field in request",
    0xCD: "command illegal for this sensor or record type",
    0xCE: "command response could not be provided",
    0xCF: "cannot execute a duplicated request",
    0xD0: "SDR repository in update mode",
    0xD1: "device in firmware update mode",
    0xD2: "BMC initialization in progress",
    0xD3: "destination unavailable",
    0xD4: "insufficient privilege level or firmware firewall",
    0xD5: "command not supported in present state",
    0xD6: "command sub-function is disabled or unavailable",
    0xFF: "unspecified error",
}

BUSY_CODES: Final = frozenset({0xC0, 0xC3, 0xC4, 0xCF, 0xD0, 0xD1, 0xD2})
"""Reads and converging commands are sent again after these (Ironic's retryable codes, and their like)."""

NOT_BEGUN_CODES: Final = frozenset({0xC0, 0xD1, 0xD2})
"""Of these the ones that say that it was not begun (table 5-2): even an order may be given again in a while, where it
asks for a state."""

UNKNOWN_PARAMETER_CODES: Final = frozenset({0x80, 0xC1, 0xC9, 0xCC, 0xCD})
"""How BMCs say that they have no such configuration parameter (story/2004266: boot option 3 on many)."""

_MAY_HAVE_HAPPENED: Final = frozenset({0xC3, 0xCE, 0xCF})

_MEANINGS: Final[dict[int, ErrorCode]] = {
    **dict.fromkeys(BUSY_CODES, ErrorCode.BUSY),
    **dict.fromkeys((0xC1, 0xC2, 0xCD, 0xD6), ErrorCode.UNSUPPORTED),
    **dict.fromkeys((0xC6, 0xC7, 0xC8, 0xC9, 0xCC), ErrorCode.INVALID_ARGUMENT),
    0xC5: ErrorCode.CONFLICT,
    0xD4: ErrorCode.AUTH_FAILED,
    0xD5: ErrorCode.CONFLICT,
}


def completion_text(command: Command, code: int) -> str:
    """The meaning of a completion code for this command."""
    known = command.codes.get(code) or _GENERIC_TEXTS.get(code)
    if known:
        return known
    if 0x80 <= code <= 0xBE:
        return "a code of this command's own, which is not known here"
    return "a code of the maker's own" if 0x01 <= code <= 0x7E else "a reserved code"


def refusal(
    command: Command, answer: Message, endpoint: str, meanings: Mapping[int, ErrorCode] | None = None
) -> OperationError:
    """The error of an answer whose completion code is not zero, typed by what the caller can do.

    `meanings`: codes that mean something else here than they do for commands in general.
    """
    code = answer.completion_code
    text = completion_text(command, code)
    kind = (meanings or {}).get(code) or _MEANINGS.get(code, ErrorCode.BMC_ERROR)
    message = f"{endpoint} refused {command.name} with completion code {code:#04x} ({text})"
    if command.act and code in _MAY_HAVE_HAPPENED:
        kind = ErrorCode.OUTCOME_UNKNOWN
        message += "; it may have happened, and is not sent again: read the machine's state"
    elif code == 0xD4:
        message += ": the user's privilege on the LAN channel is too low for it"
    return OperationError(
        kind,
        message,
        bmc=[BmcMessage(f"{code:#04x}", text)],
        details={"command": command.name, "completionCode": code},
    )


def unanswered(command: Command, endpoint: str, why: str) -> OperationError:
    """The error of an act that was sent once and whose answer did not come."""
    return OperationError(
        ErrorCode.OUTCOME_UNKNOWN,
        f"{command.name} was sent to {endpoint} once and got no answer ({why}); it may have happened, and is not "
        "sent again: read the machine's state before repeating it",
        details={"command": command.name},
    )


GET_CHANNEL_AUTHENTICATION_CAPABILITIES = Command(
    "Get Channel Authentication Capabilities", NetFn.APP, 0x38, b"\x8e\x04"
)
SET_SESSION_PRIVILEGE = Command(
    "Set Session Privilege Level",
    NetFn.APP,
    0x3B,
    codes={
        0x80: "requested level not available for this user",
        0x81: "requested level exceeds the channel's or the user's limit",
        0x82: "cannot disable user level authentication",
    },
)
CLOSE_SESSION = Command("Close Session", NetFn.APP, 0x3C, codes={0x87: "invalid session id"})
GET_DEVICE_ID = Command("Get Device ID", NetFn.APP, 0x01)
GET_SYSTEM_INFO = Command("Get System Info Parameters", NetFn.APP, 0x59, codes={0x80: "parameter not supported"})
COLD_RESET = Command("Cold Reset", NetFn.APP, 0x02, act=True)
GET_SYSTEM_GUID = Command("Get System GUID", NetFn.APP, 0x37)
GET_DEVICE_GUID = Command("Get Device GUID", NetFn.APP, 0x08)
ACTIVATE_PAYLOAD = Command(
    "Activate Payload",
    NetFn.APP,
    0x48,
    act=True,
    codes={
        0x80: "payload already active on another session",
        0x81: "payload type is disabled",
        0x82: "payload activation limit reached",
        0x83: "cannot activate the payload with encryption",
        0x84: "cannot activate the payload without encryption",
    },
)
DEACTIVATE_PAYLOAD = Command(
    "Deactivate Payload",
    NetFn.APP,
    0x49,
    codes={0x80: "payload already deactivated", 0x81: "payload type is disabled"},
)
GET_PAYLOAD_INSTANCE_INFO = Command("Get Payload Instance Info", NetFn.APP, 0x4B)
GET_SOL_CONFIGURATION = Command(
    "Get SOL Configuration Parameters", NetFn.TRANSPORT, 0x22, codes={0x80: "parameter not supported"}
)

GET_USER_ACCESS = Command("Get User Access", NetFn.APP, 0x44)
GET_USER_NAME = Command("Get User Name", NetFn.APP, 0x46)
SET_USER_PASSWORD = Command("Set User Password", NetFn.APP, 0x47, act=True)
TEST_USER_PASSWORD = Command(
    "Test User Password",
    NetFn.APP,
    0x47,
    codes={0x80: "another password", 0x81: "a password of another size"},
)

GET_CHASSIS_CAPABILITIES = Command("Get Chassis Capabilities", NetFn.CHASSIS, 0x00)
GET_CHASSIS_STATUS = Command("Get Chassis Status", NetFn.CHASSIS, 0x01)
CHASSIS_CONTROL = Command("Chassis Control", NetFn.CHASSIS, 0x02, act=True)
CHASSIS_IDENTIFY = Command("Chassis Identify", NetFn.CHASSIS, 0x04)
SET_BOOT_OPTIONS = Command(
    "Set System Boot Options",
    NetFn.CHASSIS,
    0x08,
    codes={0x80: "parameter not supported", 0x81: "set in progress by another", 0x82: "parameter is read-only"},
)
GET_BOOT_OPTIONS = Command("Get System Boot Options", NetFn.CHASSIS, 0x09, codes={0x80: "parameter not supported"})

GET_SENSOR_READING_FACTORS = Command("Get Sensor Reading Factors", NetFn.SENSOR, 0x23)
GET_SENSOR_READING = Command("Get Sensor Reading", NetFn.SENSOR, 0x2D)
RESERVE_DEVICE_SDRS = Command("Reserve Device SDR Repository", NetFn.SENSOR, 0x22)
GET_DEVICE_SDR = Command("Get Device SDR", NetFn.SENSOR, 0x21)

GET_FRU_AREA_INFO = Command("Get FRU Inventory Area Info", NetFn.STORAGE, 0x10)
READ_FRU_DATA = Command("Read FRU Data", NetFn.STORAGE, 0x11, codes={0x81: "FRU device busy"})
GET_SDR_REPOSITORY_INFO = Command("Get SDR Repository Info", NetFn.STORAGE, 0x20)
RESERVE_SDR_REPOSITORY = Command("Reserve SDR Repository", NetFn.STORAGE, 0x22)
GET_SDR = Command("Get SDR", NetFn.STORAGE, 0x23)
GET_SEL_INFO = Command("Get SEL Info", NetFn.STORAGE, 0x40, codes={0x81: "SEL erase in progress"})
RESERVE_SEL = Command("Reserve SEL", NetFn.STORAGE, 0x42, codes={0x81: "SEL erase in progress"})
GET_SEL_ENTRY = Command("Get SEL Entry", NetFn.STORAGE, 0x43, codes={0x81: "SEL erase in progress"})
CLEAR_SEL = Command("Clear SEL", NetFn.STORAGE, 0x47)
