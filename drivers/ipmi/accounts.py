"""Users of a BMC over IPMI: found by their name among its slots, and given a new password.

Source: IPMI 2.0 revision 1.1, 22.27 (Get User Access), 22.29 (Get User Name), 22.30 (Set User Password).
"""

from typing import Final

from drivers.driver import Call
from drivers.ipmi import commands
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.login import Credentials
from drivers.rotation import Sent, Write
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret

__all__ = ["find_slot", "password_data", "password_writer"]

_PRESENT_CHANNEL: Final = 0x0E
_SET, _TEST = 0x02, 0x03
_LONG, _SHORT_LENGTH, _LONG_LENGTH = 0x80, 16, 20
_NO_SUCH_USER: Final = frozenset({0xC9, 0xCB, 0xCC})


def password_data(slot: int, operation: int, password: bytes) -> bytes:
    """The data of Set User Password. A password is kept in 16 bytes where it fits, so that it serves IPMI 1.5 too,
    and in 20 where it does not; a test must name the same size."""
    is_long = len(password) > _SHORT_LENGTH
    size = _LONG_LENGTH if is_long else _SHORT_LENGTH
    return bytes((slot | (_LONG if is_long else 0), operation)) + password.ljust(size, b"\0")


async def find_slot(connection: IpmiConnection, user: str, call: Call) -> int:
    """The slot that bears the user's name; slot 1 is nobody's on most BMCs, and is trusted no more than another.

    Raises OperationError: INVALID_ARGUMENT where there is no such user, CONFLICT where two slots bear the name.
    """
    access = await connection.run(commands.GET_USER_ACCESS.with_data(bytes((_PRESENT_CHANNEL, 1))), call)
    slots = access[0] & 0x3F if access else 0
    names: dict[int, str] = {}
    for slot in range(1, slots + 1):
        answer = await connection.ask(commands.GET_USER_NAME.with_data(bytes((slot,))), call)
        if answer.completion_code in _NO_SUCH_USER:
            continue
        if answer.completion_code:
            raise commands.refusal(commands.GET_USER_NAME, answer, connection.endpoint)
        names[slot] = answer.data.split(b"\0")[0].decode("utf-8", "replace")
    found = [slot for slot, name in names.items() if name == user]
    if not found:
        there = ", ".join(name for name in names.values() if name) or "none with a name"
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"user: this BMC has no user {user!r}; it has {there}")
    if len(found) > 1:
        raise OperationError(
            ErrorCode.CONFLICT,
            f"user: {user!r} is in the slots {', '.join(map(str, found))} of this BMC: which of them logs in depends "
            "on the privilege; give them different names",
        )
    return found[0]


async def password_writer(connection: IpmiConnection, user: str, secret: Secret, call: Call) -> Write:
    """Finds the user's slot, and returns how the password is written. Nothing is changed yet.

    Raises OperationError INVALID_ARGUMENT for a password that IPMI cannot carry.
    """
    password = Credentials.of(user, secret.reveal()).password
    slot = await find_slot(connection, user, call)

    async def write() -> Sent:
        command = commands.SET_USER_PASSWORD.with_data(password_data(slot, _SET, password))
        try:
            await connection.run(command, call)
        except OperationError as error:
            if error.code is not ErrorCode.OUTCOME_UNKNOWN:
                raise
            return Sent(unsure=None if await _has_it(connection, slot, password, call) else error)
        return Sent()

    return write


async def _has_it(connection: IpmiConnection, slot: int, password: bytes, call: Call) -> bool:
    """Whether the BMC has the password now, by its own test: no login, so that nothing is counted."""
    command = commands.TEST_USER_PASSWORD.with_data(password_data(slot, _TEST, password))
    try:
        return (await connection.ask(command, call)).completion_code == 0
    except OperationError:
        return False
