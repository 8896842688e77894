"""What the firmware tells the BMC of the machine: the BIOS version, the host's name.

Source: IPMI 2.0 revision 1.1, 22.14b (Get System Info Parameters) and table 22-16c.
"""

from enum import IntEnum
from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.connection import IpmiConnection

__all__ = ["SystemInfo", "join_blocks", "read_system_info"]

_BLOCK: Final = 16
_MOST_BLOCKS: Final = 17
"""A text has 255 bytes at most, after two bytes of its own."""
_ENCODINGS: Final = {0: "latin-1", 1: "utf-8", 2: "utf-16-le"}


class SystemInfo(IntEnum):
    """The parameters that are texts."""

    FIRMWARE_VERSION = 1
    SYSTEM_NAME = 2


def join_blocks(blocks: list[bytes]) -> str | None:
    """The text in its blocks: encoding, length, text. None where it is blank or cut short."""
    whole = b"".join(blocks)
    if len(whole) < 2:
        return None
    text = whole[2 : 2 + whole[1]].decode(_ENCODINGS.get(whole[0] & 0xF, "latin-1"), "replace")
    # What was never written reads as zeros, or as ones.
    return "".join(mark for mark in text if mark.isprintable()).strip("\xff\uffff ") or None


async def read_system_info(connection: IpmiConnection, parameter: SystemInfo, call: Call) -> str | None:
    """None where the BMC does not have it. Raises OperationError where it does not answer."""
    blocks: list[bytes] = []
    wanted = 1
    while len(blocks) < min(wanted, _MOST_BLOCKS):
        request = bytes((0, parameter, len(blocks), 0))
        answer = await connection.ask(commands.GET_SYSTEM_INFO.with_data(request), call)
        # The parameter's revision and the block's number come before the block.
        if answer.completion_code or len(answer.data) < 3:
            break
        blocks.append(answer.data[2 : 2 + _BLOCK])
        if len(blocks) == 1 and len(blocks[0]) > 1:
            wanted = -(-(blocks[0][1] + 2) // _BLOCK)
    return join_blocks(blocks)
