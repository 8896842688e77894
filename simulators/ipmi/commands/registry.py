"""How a command is described and called: its privilege, its lengths, its function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulators.ipmi.constants import CompletionCode, Privilege
from simulators.ipmi.faults import FaultRule
from simulators.ipmi.sessions import Session

if TYPE_CHECKING:
    from simulators.ipmi.bmc import IpmiBmc


class Refused(Exception):
    """The command is answered with this completion code and no data."""

    def __init__(self, code: int) -> None:
        super().__init__(f"completion code {code:#04x}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Call:
    """One command being carried out. `session` is None outside a session; `rule` is the fault that met it."""

    bmc: "IpmiBmc"
    session: Session | None
    data: bytes
    rule: FaultRule | None = None

    @property
    def own_session(self) -> Session:
        """The session that the command came in; refuses commands that came without one."""
        if self.session is None:
            raise Refused(CompletionCode.INSUFFICIENT_PRIVILEGE)
        return self.session

    def channel(self, number: int) -> int:
        """The LAN channel that a request names; refuses those that this BMC does not have."""
        if number & 0xF not in (0x0E, 1):
            raise Refused(CompletionCode.INVALID_DATA_FIELD)
        return 1


@dataclass(frozen=True, slots=True)
class Command:
    """A command that this BMC knows. Privilege NONE may come without a session."""

    run: Callable[[Call], bytes]
    privilege: Privilege = Privilege.USER
    shortest: int = 0
    longest: int | None = None

    def fits(self, data: bytes) -> bool:
        """Whether the request has a length that the command takes."""
        longest = self.shortest if self.longest is None else self.longest
        return self.shortest <= len(data) <= longest


CommandTable = Mapping[tuple[int, int], Command]
