"""Management: what the BMC is, how its machine fares, its log, its light and its own restart."""

import asyncio
from datetime import datetime
from typing import Final

from drivers.driver import Call, operations_of
from drivers.ipmi import commands
from drivers.ipmi.chassis import CHASSIS_FAULTS, read_chassis_status
from drivers.ipmi.commands import Command, refusal
from drivers.ipmi.connection import IpmiConnection
from drivers.ipmi.device import DeviceId, read_device_id, read_guid
from drivers.ipmi.fru import Fru, FruError, read_fru
from drivers.ipmi.qualification import qualify
from drivers.ipmi.sel import clear_sel, read_newest
from drivers.ipmi.sensors import read_sensors
from drivers.registry import load
from protocol.errors import ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.management import (
    BmcInfo,
    ComponentHealth,
    EventLog,
    EventLogCleared,
    GetEventLog,
    Health,
    Indicator,
    IndicatorReading,
    LogRecord,
    MachineHealth,
    Qualification,
    ResetBmc,
    ResetBmcResult,
    Sensors,
    SetIndicator,
)

__all__ = ["IpmiManagement", "entries_since", "rollup"]

_MAIN_FRU: Final = 0
_IDENTIFY_SECONDS: Final = 255
_GRAVITY: Final = (Health.UNKNOWN, Health.OK, Health.WARNING, Health.CRITICAL)
_LENGTH_CODES: Final = frozenset({0xC7, 0xC8, 0xC9, 0xCC})
_BACK_POLL_SECONDS: Final = 1.0
_NEVER_AWAY_SECONDS: Final = 60.0
"""A BMC whose old session still answers after so long has not restarted."""
_PASSING: Final = frozenset({ErrorCode.UNREACHABLE, ErrorCode.BUSY, ErrorCode.BMC_ERROR, ErrorCode.TIMEOUT})


class IpmiManagement:
    """The management concern."""

    def __init__(self, connection: IpmiConnection) -> None:
        self._connection = connection

    async def get_info(self, _arguments: Nothing, call: Call) -> BmcInfo:
        """From the device id, FRU device 0 and the system's GUID; what the BMC does not have stays null."""
        device = await read_device_id(self._connection, call, fresh=True)
        fru = await self._fru(call)
        return BmcInfo(
            vendor=fru.maker or device.maker.name,
            model=fru.model,
            serial=fru.serial,
            uuid=await read_guid(self._connection, call),
            bmc_type=device.maker.bmc_type,
            bmc_version=device.firmware,
            ipmi_version=device.ipmi_version,
        )

    async def get_health(self, _arguments: Nothing, call: Call) -> MachineHealth:
        """The chassis' fault bits and every sensor that says how it fares; the worst of them is the whole's."""
        status = await read_chassis_status(self._connection, call)
        components = [
            ComponentHealth(
                name=name,
                kind="chassis",
                health=Health.CRITICAL if name in status.faults else Health.OK,
                state="asserted" if name in status.faults else None,
            )
            for name, _, _ in CHASSIS_FAULTS
        ]
        try:
            sensors = await read_sensors(self._connection, call)
        except OperationError as error:
            if error.code is not ErrorCode.UNSUPPORTED:
                raise
            sensors = []
        components += [
            ComponentHealth(name=sensor.name, kind=sensor.kind, health=sensor.status, state=words)
            for sensor, words in sensors
        ]
        return MachineHealth(rollup=rollup([c.health for c in components]), components=components)

    async def get_sensors(self, _arguments: Nothing, call: Call) -> Sensors:
        """Every sensor; one without a reading now (an absent part, a machine that is off) has null."""
        return Sensors(sensors=[sensor for sensor, _ in await read_sensors(self._connection, call)])

    async def get_event_log(self, arguments: GetEventLog, call: Call) -> EventLog:
        """The newest entries of the system event log, newest first."""
        since = _instant(arguments.since) if arguments.since is not None else None
        return EventLog(entries=entries_since(await read_newest(self._connection, arguments.limit, call), since))

    async def clear_event_log(self, _arguments: Nothing, call: Call) -> EventLogCleared:
        """Returns once the BMC has erased the log."""
        return EventLogCleared(remaining=await clear_sel(self._connection, call))

    async def get_indicator(self, _arguments: Nothing, call: Call) -> IndicatorReading:
        """From the chassis status; null where the BMC does not tell (ipmi_sim, many of IPMI 1.5 descent)."""
        identify = (await read_chassis_status(self._connection, call)).identify
        if identify is None:
            return IndicatorReading(state=None)
        return IndicatorReading(state=Indicator.ON if identify else Indicator.OFF)

    async def set_indicator(self, arguments: SetIndicator, call: Call) -> IndicatorReading:
        """On until told otherwise; where the BMC cannot do that, for 255 seconds, which `observed` then tells.

        How the light shows it (most blink) is the BMC's choice, so `blink` is UNSUPPORTED.
        """
        if arguments.state is Indicator.BLINK:
            raise OperationError(
                ErrorCode.UNSUPPORTED, "over IPMI the BMC itself chooses whether the light blinks: use state on"
            )
        identify = commands.CHASSIS_IDENTIFY
        if arguments.state is Indicator.OFF:
            await self._connection.run(identify.with_data(b"\x00"), call)
        else:
            forced = identify.with_data(b"\x00\x01")
            answer = await self._connection.ask(forced, call)
            if answer.completion_code in _LENGTH_CODES:
                await self._connection.run(identify.with_data(bytes((_IDENTIFY_SECONDS,))), call)
                call.observed["indicator"] = f"the BMC cannot keep the light on: it is on for {_IDENTIFY_SECONDS} s"
            elif answer.completion_code:
                raise refusal(forced, answer, self._connection.endpoint)
        read = (await self.get_indicator(Nothing(), call)).state
        if read is not None and read is not arguments.state:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"{self._connection.endpoint} took Chassis Identify ({arguments.state.value}) and reads {read.value}",
            )
        return IndicatorReading(state=read or arguments.state)

    async def reset_bmc(self, _arguments: ResetBmc, call: Call) -> ResetBmcResult:
        """Cold Reset, sent once; returns when the BMC answers a new login. `force` changes nothing over IPMI.

        Raises NOT_APPLIED where the BMC took it and its old session lives on, OUTCOME_UNKNOWN where it gave no answer
        and lives on.
        """
        await read_device_id(self._connection, call)
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        heard = await self._cold_reset(call)
        call.progress("the BMC restarts", None)
        if not await self._went_away(call):
            raise OperationError(
                ErrorCode.NOT_APPLIED if heard else ErrorCode.OUTCOME_UNKNOWN,
                f"{self._connection.endpoint} was sent Cold Reset once, and its session still lives after "
                f"{loop.time() - sent_at:.0f} s: it has not restarted",
            )
        self._connection.forget_session()
        device = await self._back(call)
        return ResetBmcResult(seconds_away=round(loop.time() - sent_at, 1), version=device.firmware)

    async def qualify(self, _arguments: Nothing, call: Call) -> Qualification:
        """What this BMC can do, found by reads only."""
        info = await self.get_info(Nothing(), call)
        own = operations_of(load("ipmi"))
        return Qualification(info=info, operations=await qualify(self._connection, own, call))

    async def _fru(self, call: Call) -> Fru:
        """A BMC without a FRU, or with a blank or broken one, is common, and no reason to fail."""
        try:
            return await read_fru(self._connection, _MAIN_FRU, call)
        except FruError:
            return Fru()
        except OperationError as error:
            if not error.bmc:
                raise
            return Fru()

    async def _cold_reset(self, call: Call) -> bool:
        """Whether the BMC confirmed it: some restart before they answer."""
        command: Command = commands.COLD_RESET
        try:
            await self._connection.run(command, call)
        except OperationError as error:
            if error.code is ErrorCode.OUTCOME_UNKNOWN:
                return False
            raise
        return True

    async def _went_away(self, call: Call) -> bool:
        """Whether the old session has ended: the sign of a restart, however short it was."""
        until = call.remaining - _NEVER_AWAY_SECONDS
        while call.remaining > max(until, 1.0):
            if not await self._connection.answers_in_present_session():
                return True
            await call.sleep(_BACK_POLL_SECONDS, "waiting for the BMC to restart")
        return False

    async def _back(self, call: Call) -> DeviceId:
        while True:
            try:
                return await read_device_id(self._connection, call, fresh=True)
            except OperationError as error:
                if error.code not in _PASSING or call.remaining <= 0:
                    raise
            await call.sleep(_BACK_POLL_SECONDS, "waiting for the BMC to answer again")


def rollup(healths: list[Health]) -> Health:
    """The gravest; UNKNOWN only where nothing is known."""
    return max(healths, key=_GRAVITY.index, default=Health.UNKNOWN)


def entries_since(entries: list[LogRecord], since: datetime | None) -> list[LogRecord]:
    """The entries from `since` on; those without a usable time are kept."""
    if since is None:
        return entries
    return [e for e in entries if e.time is None or datetime.fromisoformat(e.time) >= since]


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT, f"since: {text!r} is no RFC 3339 time, such as 2025-01-31T12:00:00Z"
        )
    return instant
