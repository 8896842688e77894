"""One BMC of the demo site: how it is reached, and who tells what it really did."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

__all__ = ["USER", "Bmc", "BmcProtocol", "Login", "Witness"]

USER = "admin"


class BmcProtocol(Enum):
    REDFISH = "Redfish"
    IPMI = "IPMI"


@dataclass(frozen=True)
class Login:
    """A credential as the agent's vault will hold it; BMCs of one rack share one."""

    ref: str
    password_file: Path
    password: str = field(repr=False)


class Witness(Protocol):
    """Reads the BMC without our drivers and without our database. Raises OSError when that fails."""

    @property
    def how(self) -> str:
        """The way in a few words."""

    def power(self) -> str:
        """`on` or `off`, or the BMC's own word for something else."""

    def boot(self) -> tuple[str, str]:
        """The boot override: the device in our words (`pxe`, `cd`, …), and the BMC's own words."""

    def media(self) -> list[str]:
        """The images that are inserted now."""

    def resets(self) -> int:
        """A count that grows by exactly one with each restart that the BMC was ordered and carried out."""


@dataclass(frozen=True)
class Bmc:
    """`peer` names the program behind it."""

    name: str
    peer: str
    protocol: BmcProtocol
    address: str
    login: Login
    witness: Witness
