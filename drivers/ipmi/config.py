"""Configuration over IPMI: passwords. Its system name is the host's and not the BMC's, and it knows no NTP."""

from collections.abc import Mapping
from typing import Final

from drivers.driver import Call
from drivers.ipmi.accounts import password_writer
from drivers.ipmi.connection import IpmiConnection
from drivers.rotation import rotate
from protocol.shapes.config import RotatePassword, RotatePasswordResult

__all__ = ["IpmiConfig"]

_NOT_IN_IPMI: Final = "IPMI has no such settings of the BMC: use its Redfish address"
_NO_TLS: Final = "IPMI has no certificates: use the BMC's Redfish address"
_NO_PROFILE: Final = "a profile of the whole machine is only in Dell's Redfish service"


class IpmiConfig:
    """The config concern."""

    INSTEAD: Final[Mapping[str, str]] = {
        "getConfig": _NOT_IN_IPMI,
        "setConfig": _NOT_IN_IPMI,
        "getCertificates": _NO_TLS,
        "generateCsr": _NO_TLS,
        "replaceCertificate": _NO_TLS,
        "exportConfig": _NO_PROFILE,
        "importConfig": _NO_PROFILE,
    }

    def __init__(self, connection: IpmiConnection) -> None:
        self._connection = connection

    async def rotate_password(self, arguments: RotatePassword, call: Call) -> RotatePasswordResult:
        """Gives a user the password that `call.rotation` holds; see `drivers.rotation`. IPMI carries 20 bytes."""
        connection = self._connection
        return await rotate(
            arguments.user,
            connection.target,
            IpmiConnection,
            connection.environment,
            lambda secret: password_writer(connection, arguments.user, secret, call),
            call,
        )
