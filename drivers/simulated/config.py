"""Configuration of a simulated BMC."""

import hashlib
import json

import msgspec

from drivers.driver import Call
from drivers.simulated.bios import attribute_faults, queue_attributes
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState, note
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.bios import BiosValue
from protocol.shapes.config import (
    BmcConfig,
    Certificate,
    Certificates,
    ExportConfig,
    ExportConfigResult,
    GenerateCsr,
    GenerateCsrResult,
    ImportConfig,
    ImportConfigResult,
    NetworkProtocolConfig,
    ReplaceCertificate,
    ReplaceCertificateResult,
    RotatePassword,
    RotatePasswordResult,
    SetConfig,
    SetConfigResult,
)

__all__ = ["SimulatedConfig"]

_FORMAT = "rackwright-simulated-v1"
_PROTOCOLS = {
    "HTTPS": NetworkProtocolConfig(enabled=True, port=443),
    "SSH": NetworkProtocolConfig(enabled=False, port=22),
    "IPMI": NetworkProtocolConfig(enabled=False, port=623),
}


class SimulatedConfig:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_config(self, arguments: Nothing, call: Call) -> BmcConfig:
        return await self._connection.read(call, self._config)

    async def set_config(self, arguments: SetConfig, call: Call) -> SetConfigResult:
        def deed(state: MachineState) -> tuple[bool, SetConfigResult]:
            changed = _apply(state, self._config(state), arguments)
            return bool(changed), SetConfigResult(changed=changed)

        return await self._connection.change(call, arguments, deed)

    async def rotate_password(self, arguments: RotatePassword, call: Call) -> RotatePasswordResult:
        """Remembers which credential the account has now; the password itself is not looked at."""

        def deed(state: MachineState) -> tuple[bool, RotatePasswordResult]:
            state.config.credentials[arguments.user] = arguments.new_credential_ref
            note(state, f"the password of {arguments.user} was changed")
            return True, RotatePasswordResult(user=arguments.user, proven=True)

        rotation = call.rotation
        if rotation is None:
            return await self._connection.change(call, arguments, deed)
        await rotation.begin()
        try:
            result = await self._connection.change(call, arguments, deed)
        except OperationError as error:
            if error.code not in (ErrorCode.OUTCOME_UNKNOWN, ErrorCode.TIMEOUT):
                await rotation.withdrawn()
            raise
        await rotation.proven()
        return result

    async def get_certificates(self, arguments: Nothing, call: Call) -> Certificates:
        """The one that was given to it; a fresh machine has one without a text."""

        def look(state: MachineState) -> Certificates:
            certificate = self._certificate(state)
            return Certificates(certificates=[certificate], served=certificate.fingerprint)

        return await self._connection.read(call, look)

    async def generate_csr(self, arguments: GenerateCsr, call: Call) -> GenerateCsrResult:
        """A true signing request, whose key is forgotten at once: any certificate is taken afterwards."""

        def deed(state: MachineState) -> tuple[bool, GenerateCsrResult]:
            from drivers.simulated.signing import signing_request

            return True, signing_request(arguments.common_name)

        return await self._connection.change(call, arguments, deed)

    async def replace_certificate(self, arguments: ReplaceCertificate, call: Call) -> ReplaceCertificateResult:
        from drivers.certificates import fingerprint_of, parse_chain, pem_of

        certificate = parse_chain(arguments.certificate)[0]
        wanted = fingerprint_of(certificate)

        def deed(state: MachineState) -> tuple[bool, ReplaceCertificateResult]:
            changed = self._certificate(state).fingerprint != wanted
            state.config.certificate = pem_of(certificate)
            return changed, ReplaceCertificateResult(fingerprint=wanted, changed=changed, served=True)

        return await self._connection.change(call, arguments, deed)

    async def export_config(self, arguments: ExportConfig, call: Call) -> ExportConfigResult:
        def look(state: MachineState) -> ExportConfigResult:
            document = {"format": _FORMAT, "bios": state.bios, "config": msgspec.to_builtins(self._settable(state))}
            return ExportConfigResult(document=json.dumps(document, sort_keys=True), format=_FORMAT)

        return await self._connection.read(call, look)

    async def import_config(self, arguments: ImportConfig, call: Call) -> ImportConfigResult:
        """BIOS attributes wait for the next boot, the rest applies at once."""

        def deed(state: MachineState) -> tuple[bool, ImportConfigResult]:
            profile = _profile(arguments.document)
            _apply(state, self._config(state), profile.config)
            queue_attributes(state, profile.bios)
            note(state, "a configuration profile was imported")
            return True, ImportConfigResult()

        return await self._connection.change(call, arguments, deed)

    def _config(self, state: MachineState) -> BmcConfig:
        kept = state.config
        return BmcConfig(
            host_name=kept.host_name or f"bmc-{self._connection.identity.name}",
            ntp_enabled=kept.ntp_enabled,
            ntp_servers=kept.ntp_servers,
            time=kept.time,
            time_offset=kept.time_offset,
            protocols={**_PROTOCOLS, **kept.protocols},
            event_destinations=kept.event_destinations,
        )

    def _settable(self, state: MachineState) -> SetConfig:
        shown = msgspec.structs.asdict(self._config(state))
        return SetConfig(**{name: shown[name] for name in SetConfig.__struct_fields__})

    def _certificate(self, state: MachineState) -> Certificate:
        if state.config.certificate is not None:
            from drivers.certificates import described, parse_chain

            return described("1", parse_chain(state.config.certificate)[0])
        name = f"CN=bmc-{self._connection.identity.name}"
        return Certificate(id="1", subject=name, issuer=name, fingerprint=hashlib.sha256(name.encode()).hexdigest())


class _Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    bios: dict[str, BiosValue] = {}
    config: SetConfig = SetConfig()


def _profile(document: str) -> _Profile:
    try:
        profile = msgspec.json.decode(document, type=_Profile)
    except msgspec.DecodeError as error:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"document: is no exported profile: {error}") from error
    if profile.format != _FORMAT:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, f"document: its format must be {_FORMAT!r}")
    problems = attribute_faults(profile.bios)
    if problems:
        raise OperationError(ErrorCode.INVALID_ARGUMENT, "document: " + "; ".join(problems))
    return profile


def _apply(state: MachineState, present: BmcConfig, wanted: SetConfig) -> list[str]:
    """Takes over the fields that are given; names those that were different."""
    unknown = [name for name in wanted.protocols or {} if name not in _PROTOCOLS]
    if unknown:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            f"protocols: there is no {', '.join(unknown)}; this BMC has {', '.join(_PROTOCOLS)}",
        )
    changed = []
    for field in msgspec.structs.fields(SetConfig):
        value, was = getattr(wanted, field.name), getattr(present, field.name)
        if value is None:
            continue
        if field.name == "protocols":
            value = {**was, **value}
        if value != was:
            setattr(state.config, field.name, value)
            changed.append(field.encode_name)
    return changed
