"""The numbers of IPMI 2.0 that more than one module needs, under the names of the specification."""

from enum import IntEnum, IntFlag
from typing import Final

RMCP_PORT: Final = 623
IPMI_OVER_LAN_CHANNEL: Final = 1
PRESENT_CHANNEL: Final = 0x0E
BMC_ADDRESS: Final = 0x20


class NetFn(IntEnum):
    """Network functions of requests (IPMI 2.0, table 5-1); an answer carries the number plus one."""

    CHASSIS = 0x00
    BRIDGE = 0x02
    SENSOR_EVENT = 0x04
    APP = 0x06
    FIRMWARE = 0x08
    STORAGE = 0x0A
    TRANSPORT = 0x0C


class CompletionCode(IntEnum):
    """The first byte of every answer (IPMI 2.0, table 5-2). 0x80 to 0xBE differ per command."""

    OK = 0x00
    NODE_BUSY = 0xC0
    INVALID_COMMAND = 0xC1
    INVALID_FOR_LUN = 0xC2
    TIMEOUT = 0xC3
    OUT_OF_SPACE = 0xC4
    RESERVATION_CANCELLED = 0xC5
    DATA_TRUNCATED = 0xC6
    DATA_LENGTH_INVALID = 0xC7
    DATA_LENGTH_EXCEEDED = 0xC8
    PARAMETER_OUT_OF_RANGE = 0xC9
    CANNOT_RETURN_THAT_MANY_BYTES = 0xCA
    NOT_PRESENT = 0xCB
    INVALID_DATA_FIELD = 0xCC
    ILLEGAL_FOR_SENSOR = 0xCD
    NO_ANSWER = 0xCE
    DUPLICATE_REQUEST = 0xCF
    INITIALISING = 0xD2
    DESTINATION_UNAVAILABLE = 0xD3
    INSUFFICIENT_PRIVILEGE = 0xD4
    NOT_IN_PRESENT_STATE = 0xD5
    DISABLED = 0xD6
    UNSPECIFIED = 0xFF


class RmcpStatus(IntEnum):
    """Status of Open Session and RAKP answers (IPMI 2.0, table 13-15)."""

    OK = 0x00
    INSUFFICIENT_RESOURCES = 0x01
    INVALID_SESSION_ID = 0x02
    INVALID_PAYLOAD_TYPE = 0x03
    INVALID_AUTHENTICATION_ALGORITHM = 0x04
    INVALID_INTEGRITY_ALGORITHM = 0x05
    NO_MATCHING_AUTHENTICATION_PAYLOAD = 0x06
    NO_MATCHING_INTEGRITY_PAYLOAD = 0x07
    INACTIVE_SESSION_ID = 0x08
    INVALID_ROLE = 0x09
    UNAUTHORISED_ROLE = 0x0A
    INSUFFICIENT_RESOURCES_FOR_ROLE = 0x0B
    INVALID_NAME_LENGTH = 0x0C
    UNAUTHORISED_NAME = 0x0D
    UNAUTHORISED_GUID = 0x0E
    INVALID_INTEGRITY_CHECK = 0x0F
    INVALID_CONFIDENTIALITY_ALGORITHM = 0x10
    NO_CIPHER_SUITE_MATCH = 0x11
    ILLEGAL_PARAMETER = 0x12


class Privilege(IntEnum):
    """Session privilege levels and user limits; NO_ACCESS is a limit only."""

    NONE = 0
    CALLBACK = 1
    USER = 2
    OPERATOR = 3
    ADMINISTRATOR = 4
    OEM = 5
    NO_ACCESS = 15


class PayloadType(IntEnum):
    """RMCP+ payload types (IPMI 2.0, table 13-16)."""

    IPMI = 0x00
    SOL = 0x01
    OPEN_SESSION_REQUEST = 0x10
    OPEN_SESSION_RESPONSE = 0x11
    RAKP_1 = 0x12
    RAKP_2 = 0x13
    RAKP_3 = 0x14
    RAKP_4 = 0x15


class ChassisControl(IntEnum):
    """What the Chassis Control command asks (IPMI 2.0, table 28-4)."""

    POWER_DOWN = 0
    POWER_UP = 1
    POWER_CYCLE = 2
    HARD_RESET = 3
    DIAGNOSTIC_INTERRUPT = 4
    SOFT_SHUTDOWN = 5


class RestartCause(IntEnum):
    """Why the system last started (IPMI 2.0, table 28-11)."""

    UNKNOWN = 0x0
    CHASSIS_CONTROL = 0x1
    RESET_BUTTON = 0x2
    POWER_BUTTON = 0x3
    WATCHDOG = 0x4
    OEM = 0x5
    ALWAYS_RESTORE = 0x6
    RESTORE_PREVIOUS = 0x7
    PEF_RESET = 0x8
    PEF_CYCLE = 0x9
    SOFT_RESET = 0xA
    REAL_TIME_CLOCK = 0xB


class BootDevice(IntEnum):
    """Boot device selector of boot flags data 2, bits 5:2 (IPMI 2.0, table 28-14)."""

    NONE = 0x0
    PXE = 0x1
    DISK = 0x2
    DISK_SAFE_MODE = 0x3
    DIAGNOSTIC = 0x4
    CDROM = 0x5
    BIOS_SETUP = 0x6
    REMOTE_FLOPPY = 0x7
    REMOTE_CDROM = 0x8
    REMOTE_PRIMARY = 0x9
    REMOTE_DISK = 0xB
    FLOPPY = 0xF


class BootFlag(IntFlag):
    """Bits of boot flags data 1."""

    VALID = 0x80
    PERSISTENT = 0x40
    UEFI = 0x20
