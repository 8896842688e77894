"""Configuration of the BMC: what it is set to, its accounts' passwords, its certificates, its maker's profile."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import msgspec

from drivers.driver import Call
from drivers.redfish.accounts import password_writer
from drivers.redfish.bmc_settings import (
    Wish,
    faults_of,
    host_name_wish,
    ntp_of,
    ntp_wishes,
    oem_ntp_of,
    protocol_wishes,
    protocols_of,
    time_wishes,
)
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, link, members, text
from drivers.redfish.event_destinations import apply_destinations, read_destinations
from drivers.redfish.https_certificates import HttpsCertificates, shows_already
from drivers.redfish.manners import OemSettings
from drivers.redfish.server_profile import export_profile, import_profile
from drivers.redfish.settings_change import Report, apply_wishes, attempt
from drivers.redfish.walking import read_collection
from drivers.rotation import rotate
from protocol.addresses import Scheme
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.config import (
    BmcConfig,
    Certificates,
    ExportConfig,
    ExportConfigResult,
    GenerateCsr,
    GenerateCsrResult,
    ImportConfig,
    ImportConfigResult,
    ReplaceCertificate,
    ReplaceCertificateResult,
    RotatePassword,
    RotatePasswordResult,
    SetConfig,
    SetConfigResult,
)

__all__ = ["RedfishConfig"]

_PROOF_PAUSE = 1.0
"""Seconds from the BMC's yes to the first login with the new password: some apply it a moment later."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The resources that hold the BMC's settings. Paths are empty where there is no such resource."""

    manager_path: str
    manager: Document
    network_path: str
    network: Document | None
    oem_path: str
    oem_place: OemSettings | None

    def standard(self) -> tuple[str, Document] | None:
        return None if self.network is None else (self.network_path, self.network)


class RedfishConfig:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_config(self, arguments: Nothing, call: Call) -> BmcConfig:
        """What the manager, its network protocols and the event service say; a part that cannot be read is empty."""
        connection = self._connection
        found = await self._look(call)
        enabled, servers, supplied = ntp_of(found.network)
        if enabled is None and not servers and found.oem_place is not None and "NTP" not in (found.network or {}):
            oem = await connection.find(found.oem_path, call)
            enabled, servers, supplied = oem_ntp_of(found.oem_place, oem)
        host_name, fqdn = text(found.network, "HostName"), text(found.network, "FQDN")
        if host_name is None:
            for interface in await read_collection(connection, link(found.manager, "EthernetInterfaces"), call):
                host_name = text(interface, "HostName")
                fqdn = fqdn or text(interface, "FQDN")
                if host_name is not None:
                    break
        return BmcConfig(
            host_name=host_name,
            fqdn=fqdn,
            ntp_enabled=enabled,
            ntp_servers=servers,
            ntp_supplied_servers=supplied,
            time=text(found.manager, "DateTime"),
            time_offset=text(found.manager, "DateTimeLocalOffset"),
            protocols=protocols_of(found.network),
            event_destinations=await read_destinations(connection, call),
        )

    async def set_config(self, arguments: SetConfig, call: Call) -> SetConfigResult:
        """Sends what differs, and reads each field back. Everything is checked before anything is sent.

        Raises OperationError INVALID_ARGUMENT with every fault; else, where a field could not be changed, the first
        one's kind, with `details` that say exactly what was changed, what was not, and why.
        """
        found = await self._look(call)
        faults = faults_of(arguments, protocols_of(found.network), self._own_protocols())
        if faults:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT,
                "; ".join(str(fault) for fault in faults),
                details={"issues": [msgspec.to_builtins(fault) for fault in faults]},
            )
        report = Report()
        await apply_wishes(
            self._connection, [wish async for wish in self._wishes(arguments, found, call)], call, report
        )
        if arguments.event_destinations is not None:
            work = partial(apply_destinations, self._connection, arguments.event_destinations, call)
            await attempt(report, "eventDestinations", work)
        report.raise_for_failures()
        return SetConfigResult(changed=report.changed)

    async def rotate_password(self, arguments: RotatePassword, call: Call) -> RotatePasswordResult:
        """Gives an account the password that `call.rotation` holds; see `drivers.rotation`.

        Works also where the BMC lets a user do nothing but change a factory password.
        """
        connection = self._connection
        return await rotate(
            arguments.user,
            connection.target,
            RedfishConnection,
            connection.environment,
            lambda secret: password_writer(connection, arguments.user, secret, call),
            call,
            pause=_PROOF_PAUSE,
        )

    async def get_certificates(self, arguments: Nothing, call: Call) -> Certificates:
        """The certificates of the BMC's web server, and which of them it shows."""
        return await (await self._certificates(call)).read(call)

    async def generate_csr(self, arguments: GenerateCsr, call: Call) -> GenerateCsrResult:
        """A signing request by a key that the BMC makes and keeps."""
        return await (await self._certificates(call)).request(arguments, call)

    async def replace_certificate(self, arguments: ReplaceCertificate, call: Call) -> ReplaceCertificateResult:
        """Gives the web server its signed certificate; nothing is sent where it shows that one already."""
        there = await shows_already(self._connection, arguments.certificate, call)
        if there is not None:
            return there
        return await (await self._certificates(call)).replace(arguments, call)

    async def export_config(self, arguments: ExportConfig, call: Call) -> ExportConfigResult:
        """The vendor's profile of the machine, with secrets masked."""
        return await export_profile(self._connection, (await self._look(call)).manager, arguments, call)

    async def import_config(self, arguments: ImportConfig, call: Call) -> ImportConfigResult:
        """Gives the machine a profile of its vendor's."""
        return await import_profile(self._connection, (await self._look(call)).manager, arguments, call)

    async def _certificates(self, call: Call) -> HttpsCertificates:
        found = await self._look(call)
        return HttpsCertificates(self._connection, found.manager, found.network)

    async def _look(self, call: Call) -> _Found:
        service = self._connection.service
        found = await self._look_at(await service.managers(call), call)
        if found is None:
            # The addresses that are kept may be those of an older firmware.
            service.forget()
            found = await self._look_at(await service.managers(call), call)
        if found is None:
            raise OperationError(
                ErrorCode.UNSUPPORTED, f"{self._connection.endpoint} shows no manager that could be configured"
            )
        return found

    async def _look_at(self, managers: list[str], call: Call) -> _Found | None:
        connection = self._connection
        for path in managers:
            manager = await connection.find_patiently(path, call)
            if manager is not None:
                network_path = link(manager, "NetworkProtocol") or ""
                place = connection.service.manners.oem_settings
                oem_path = link(manager, *place.resource) if place is not None else None
                return _Found(
                    path,
                    manager,
                    network_path,
                    await connection.find_patiently(network_path or None, call),
                    oem_path or "",
                    place if oem_path else None,
                )
        return None

    async def _wishes(self, wanted: SetConfig, found: _Found, call: Call) -> AsyncIterator[Wish]:
        """What differs, in the order in which it is changed: the clock last, since NTP may forbid it."""
        needs_oem = wanted.host_name is not None or wanted.ntp_servers is not None or wanted.ntp_enabled is not None
        oem = await self._oem(found, call) if needs_oem else None
        if wanted.protocols and found.network is not None:
            for wish in protocol_wishes(found.network_path, found.network, wanted.protocols):
                yield wish
        for wish in ntp_wishes(wanted, found.standard(), oem):
            yield wish
        if wanted.host_name is not None:
            interfaces = await self._interfaces(found, call)
            named = host_name_wish(wanted.host_name, found.standard(), interfaces, oem)
            if named is not None:
                yield named
        for wish in time_wishes(found.manager_path, found.manager, wanted, asyncio.get_running_loop().time):
            yield wish

    async def _oem(self, found: _Found, call: Call) -> tuple[str, Document, OemSettings] | None:
        if found.oem_place is None:
            return None
        document = await self._connection.find_patiently(found.oem_path, call)
        return None if document is None else (found.oem_path, document, found.oem_place)

    async def _interfaces(self, found: _Found, call: Call) -> list[tuple[str, Document]]:
        """One by one, after the links that lead to them: a body may name another resource (NVIDIA BlueField-3)."""
        paths = members(await self._connection.find(link(found.manager, "EthernetInterfaces"), call))
        return [
            (path, document) for path in paths if (document := await self._connection.find(path, call)) is not None
        ]

    def _own_protocols(self) -> list[str]:
        """Those that must stay on: Redfish itself needs HTTPS (DSP0266), and this connection its own scheme."""
        return ["HTTPS", "HTTP"] if self._connection.target.parsed.scheme is Scheme.HTTP else ["HTTPS"]
