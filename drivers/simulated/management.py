"""What a simulated BMC says of itself and of its machine."""

import asyncio

from drivers.driver import Call
from drivers.simulated.firmware import versions
from drivers.simulated.machine import SimulatedConnection
from drivers.simulated.state import MachineState, note
from protocol.errors import ErrorCode
from protocol.operations import OPERATIONS
from protocol.shapes import Nothing
from protocol.shapes.management import (
    BmcInfo,
    ComponentHealth,
    EventLog,
    EventLogCleared,
    GetEventLog,
    Health,
    IndicatorReading,
    LogRecord,
    MachineHealth,
    OperationSupport,
    Qualification,
    ResetBmc,
    ResetBmcResult,
    Sensor,
    Sensors,
    SetIndicator,
    Support,
    Thresholds,
)
from protocol.shapes.power import PowerState

__all__ = ["SimulatedManagement"]

_NEVER = (ErrorCode.UNSUPPORTED, ErrorCode.LICENSE_REQUIRED)


class SimulatedManagement:
    def __init__(self, connection: SimulatedConnection) -> None:
        self._connection = connection

    async def get_info(self, arguments: Nothing, call: Call) -> BmcInfo:
        return await self._connection.read(call, self._info)

    async def get_health(self, arguments: Nothing, call: Call) -> MachineHealth:
        identity = self._connection.identity
        components = [
            *(ComponentHealth(name=part.socket, kind="processor", health=Health.OK) for part in identity.processors),
            *(ComponentHealth(name=part.slot, kind="memory", health=Health.OK) for part in identity.memory),
            *(ComponentHealth(name=part.name, kind="drive", health=Health.OK) for part in identity.drives),
        ]
        return await self._connection.read(call, lambda _: MachineHealth(rollup=Health.OK, components=components))

    async def get_sensors(self, arguments: Nothing, call: Call) -> Sensors:
        return await self._connection.read(call, lambda state: _sensors(state, self._connection.identity.warmth))

    async def get_event_log(self, arguments: GetEventLog, call: Call) -> EventLog:
        return await self._connection.read(call, lambda state: _newest(state.log, arguments))

    async def clear_event_log(self, arguments: Nothing, call: Call) -> EventLogCleared:
        def deed(state: MachineState) -> tuple[bool, EventLogCleared]:
            changed = bool(state.log)
            state.log = []
            note(state, "the event log was cleared")
            return changed, EventLogCleared(remaining=len(state.log))

        return await self._connection.change(call, arguments, deed)

    async def get_indicator(self, arguments: Nothing, call: Call) -> IndicatorReading:
        return await self._connection.read(call, lambda state: IndicatorReading(state=state.indicator))

    async def set_indicator(self, arguments: SetIndicator, call: Call) -> IndicatorReading:
        def deed(state: MachineState) -> tuple[bool, IndicatorReading]:
            changed = state.indicator is not arguments.state
            state.indicator = arguments.state
            return changed, IndicatorReading(state=state.indicator)

        return await self._connection.change(call, arguments, deed)

    async def reset_bmc(self, arguments: ResetBmc, call: Call) -> ResetBmcResult:
        """The host runs on; an open console is lost."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        def deed(state: MachineState) -> tuple[bool, ResetBmcResult]:
            state.console = None
            note(state, "the BMC restarted")
            away = loop.time() - begun
            return True, ResetBmcResult(seconds_away=round(away, 3), version=versions(state)["BMC"])

        return await self._connection.change(call, arguments, deed, ("waiting for the BMC to come back",))

    async def qualify(self, arguments: Nothing, call: Call) -> Qualification:
        return await self._connection.read(
            call, lambda state: Qualification(info=self._info(state), operations=self._support())
        )

    def _info(self, state: MachineState) -> BmcInfo:
        identity = self._connection.identity
        return BmcInfo(
            vendor=identity.vendor,
            model=identity.model,
            serial=identity.serial,
            uuid=identity.uuid,
            bmc_type="Simulated BMC",
            bmc_version=versions(state)["BMC"],
        )

    def _support(self) -> list[OperationSupport]:
        """What the script refuses for good is unsupported; the simulated machine itself can do everything."""
        refused = {
            operation: fault.code
            for fault in reversed(self._connection.faults_for_good())
            for operation in OPERATIONS
            if fault.code in _NEVER and fault.matches(operation)
        }
        return [
            OperationSupport(
                operation=operation,
                support=Support.UNSUPPORTED if operation in refused else Support.SUPPORTED,
                evidence=f"its script answers {refused[operation]}" if operation in refused else "simulated",
            )
            for operation in OPERATIONS
        ]


def _newest(log: list[LogRecord], arguments: GetEventLog) -> EventLog:
    from_time = arguments.since or ""
    kept = [entry for entry in reversed(log) if entry.time is None or entry.time >= from_time]
    return EventLog(entries=kept[: arguments.limit])


def _sensors(state: MachineState, warmth: float) -> Sensors:
    on = state.power is not PowerState.OFF
    limits = Thresholds(lower_critical=3, lower_warning=8, upper_warning=42, upper_critical=47)
    hot = Thresholds(upper_warning=90, upper_critical=95)
    fans = [
        Sensor(
            name=f"Fan {number}",
            kind="fan",
            reading=4200 + 100 * warmth if on else 0,
            unit="RPM",
            status=Health.OK,
            thresholds=Thresholds(lower_critical=600) if on else None,
        )
        for number in range(1, 5)
    ]
    processors = [
        Sensor(
            name=f"CPU {number} Temp",
            kind="temperature",
            reading=41 + 2 * warmth if on else None,
            unit="Cel",
            status=Health.OK if on else Health.UNKNOWN,
            thresholds=hot,
        )
        for number in (1, 2)
    ]
    inlet = Sensor(
        name="Inlet Temp", kind="temperature", reading=20 + warmth, unit="Cel", status=Health.OK, thresholds=limits
    )
    power = Sensor(
        name="System Power", kind="power", reading=310 + 10 * warmth if on else 12, unit="W", status=Health.OK
    )
    return Sensors(sensors=[inlet, *processors, *fans, power])
