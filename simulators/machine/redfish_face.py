"""The machine as Redfish sees it: its power, its boot override and its virtual drive, over the one host."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from simulators.machine.bmc_memory import InsertedImage
from simulators.machine.host import Cause, Host, HostState, Order, OrderRefused
from simulators.machine.image import ImageFault
from simulators.machine.process import MachineFault
from simulators.machine.tree import CD, CHASSIS, EVENT_LOG, SYSTEM
from simulators.redfish.documents import Answer
from simulators.redfish.errors import RedfishError, action_conflicts, property_value_error, resource_in_use
from simulators.redfish.machine import Machine
from simulators.redfish.media import VirtualMedia
from simulators.redfish.power import Power, PowerState, ResetType
from simulators.redfish.routes import Call
from simulators.redfish.tasks import RunningTask, TaskEngine, TaskFailed

log = logging.getLogger(__name__)

STATES = {
    HostState.OFF: PowerState.OFF,
    HostState.STARTING: PowerState.POWERING_ON,
    HostState.ON: PowerState.ON,
    HostState.STOPPING: PowerState.POWERING_OFF,
}
_ORDERS = {
    ResetType.ON: Order.START,
    ResetType.FORCE_ON: Order.START,
    ResetType.FORCE_OFF: Order.STOP,
    ResetType.GRACEFUL_SHUTDOWN: Order.PRESS_BUTTON,
    ResetType.PUSH_POWER_BUTTON: Order.PRESS_BUTTON,
    ResetType.FORCE_RESTART: Order.RESET,
    ResetType.GRACEFUL_RESTART: Order.GRACEFUL_RESTART,
    ResetType.POWER_CYCLE: Order.CYCLE,
    ResetType.FULL_POWER_CYCLE: Order.CYCLE,
    ResetType.NMI: Order.INTERRUPT,
}
# A shutdown of a host that is off is done already; pressing the button would start it.
_ONLY_FROM_ON = {ResetType.GRACEFUL_SHUTDOWN}
Insert = Callable[[InsertedImage], Awaitable[None]]
Eject = Callable[[], Awaitable[None]]


class HostPower(Power):
    """The rules of `ComputerSystem.Reset`, with a true host behind them."""

    def __init__(self, machine: Machine, host: Host) -> None:
        super().__init__(machine)
        self._host = host
        self._failed = False
        host.on_state.append(self._host_changed)
        host.on_fault.append(self._host_failed)

    def obey(self, system: str, reset_type: ResetType, settled: PowerState, outcome: str) -> None:
        """Passes a reset on."""
        if reset_type in _ONLY_FROM_ON and settled is PowerState.OFF:
            return
        try:
            self._host.order(_ORDERS[reset_type])
        except (OrderRefused, KeyError) as error:
            raise action_conflicts(
                "ComputerSystem.Reset", "ResetType", reset_type.value, self.state(system).value
            ) from error

    def set_state(self, system: str, state: PowerState) -> None:
        """A hand on the machine: it pulls the plug, or presses the button of a host that is off."""
        if state in (PowerState.OFF, PowerState.POWERING_OFF):
            self._host.order(Order.STOP, Cause.HAND)
        else:
            self._host.order(Order.START, Cause.HAND)

    def _host_changed(self, state: HostState, cause: Cause) -> None:
        shown = STATES[state]
        store = self.machine.store
        if shown is PowerState.ON:
            self._stamp(SYSTEM)
            if self._failed:
                self._failed = False
                self._show_health("OK")
        if self.state(SYSTEM) is shown:
            return
        for path in (SYSTEM, CHASSIS):
            store.edit(path, lambda document: document.update(PowerState=shown.value))
        self.machine.emit(f"Power{shown.value}", SYSTEM, f"The power state is now {shown.value} ({cause}).")

    def _host_failed(self, text: str) -> None:
        self._failed = True
        note(self.machine, text)
        self._show_health("Critical")
        self.machine.emit("HealthCritical", SYSTEM, text)

    def _show_health(self, health: str) -> None:
        self.machine.store.edit(
            SYSTEM, lambda document: document["Status"].update(Health=health, HealthRollup=health)
        )


class MachineMedia(VirtualMedia):
    """The virtual drive. An insertion is a task: it ends when the image was found, or with the reason why not."""

    def __init__(self, machine: Machine, tasks: TaskEngine, insert: Insert, eject: Eject) -> None:
        super().__init__(machine)
        self._tasks = tasks
        self._insert = insert
        self._eject = eject
        self._running: set[asyncio.Task[None]] = set()
        self._insertion: asyncio.Task[None] | None = None

    def insert(self, call: Call) -> Answer:
        """InsertMedia: 202 with a task. RedfishError: 400 for a wrong parameter, 409 where the drive is in use."""
        self.check_insertion(call)
        if self._insertion is not None:
            raise resource_in_use("The virtual media slot")
        address = str(call.body["Image"])
        if not address.lower().startswith(("http://", "https://")):
            raise RedfishError(400, property_value_error("Image", "this drive reads http and https only"))
        image = InsertedImage(
            address,
            user=str(call.body.get("UserName") or ""),
            password=str(call.body.get("Password") or ""),
            verify=bool(call.document.get("VerifyCertificate")),
        )
        answer, task = self._tasks.begin("Insert Virtual Media")
        self._insertion = self._go(self._carry_in(call, image, task))
        return answer

    def eject(self, call: Call) -> None:
        """EjectMedia. The slot is empty at once; an insertion that is under way ends. The boot override stays."""
        super().eject(call)
        insertion, self._insertion = self._insertion, None
        if insertion is not None:
            insertion.cancel()
        self._go(self._carry_out(insertion))

    async def stop(self) -> None:
        """Ends what is under way."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def settled(self) -> None:
        """Waits until no image is on its way in or out."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _carry_in(self, call: Call, image: InsertedImage, task: RunningTask) -> None:
        own = asyncio.current_task()
        fault = "the insertion was ended by an ejection"
        try:
            await self._insert(image)
            self.put_image(call.resource, call.body)
            fault = ""
        except (ImageFault, MachineFault, OSError) as error:
            fault = str(error)
            note(self.machine, f"The virtual medium was not inserted: {fault}")
        finally:
            if self._insertion is own:
                self._insertion = None
            self._tasks.run(task, lambda: end_task(fault))

    async def _carry_out(self, insertion: asyncio.Task[None] | None) -> None:
        if insertion is not None:
            await asyncio.gather(insertion, return_exceptions=True)
        try:
            await self._eject()
        except (MachineFault, OSError) as error:
            note(self.machine, f"The virtual medium was not ejected cleanly: {error}")

    def _go(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def end_task(fault: str) -> None:
    """The end of a task, for `TaskEngine.run`. Raises TaskFailed where there was a fault."""
    if fault:
        raise TaskFailed(fault)


def note(machine: Machine, text: str, severity: str = "Critical") -> None:
    """Writes into the system's event log, where operators look for causes; what it says already is not repeated."""
    newest = machine.store.members(EVENT_LOG)[-1:]
    if newest and machine.property(newest[0], "Message") == text:
        return
    log.warning("%s", text)
    number = machine.store.free_id(EVENT_LOG)
    machine.store.add_member(
        EVENT_LOG,
        {
            "@odata.type": "#LogEntry.v1_17_0.LogEntry",
            "@odata.id": f"{EVENT_LOG}/{number}",
            "Id": number,
            "Name": f"Log entry {number}",
            "EntryType": "SEL",
            "Severity": severity,
            "Created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "Message": text,
        },
    )


def show_image(media: VirtualMedia, machine: Machine, image: InsertedImage) -> None:
    """Shows an image that was in the drive before the BMC started."""
    slot = machine.store.find(CD)
    if slot is not None:
        shown = Path(image.address).as_uri() if image.local else image.address
        media.put_image(slot, {"Image": shown, "UserName": image.user or None})
