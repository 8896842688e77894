"""`/_simulator/machine`: what a hand in the machine room does to a virtual machine, and what can be seen there.

GET tells the state. POST takes `{"action": …}`: press-button, pull-plug, crash (QEMU dies), link-down and link-up
(the network cables).
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from simulators.machine.host import Cause, HostState, Order
from simulators.machine.image import HttpImage
from simulators.machine.process import MachineFault
from simulators.redfish.documents import Answer, Request

if TYPE_CHECKING:
    from simulators.machine.machine import VirtualMachine

log = logging.getLogger(__name__)

ACTIONS = ("press-button", "pull-plug", "crash", "link-down", "link-up")


def machine_control(machine: "VirtualMachine", request: Request) -> Answer:
    """Answers one request to the control resource of a machine."""
    if request.method == "GET":
        return Answer.of(200, state_document(machine))
    if request.method != "POST":
        return Answer.of(405, {"error": "use GET or POST"}, {"Allow": "GET, POST"})
    action = (request.json_object() or {}).get("action")
    if action not in ACTIONS:
        return Answer.of(400, {"error": f"give an action: {', '.join(ACTIONS)}"})
    act(machine, str(action))
    return Answer.of(202, state_document(machine))


def act(machine: "VirtualMachine", action: str) -> None:
    """Begins what a hand does; it shows in the state once it is done."""
    host = machine.host
    match action:
        case "press-button":
            host.order(Order.PRESS_BUTTON, Cause.HAND)
        case "pull-plug":
            host.order(Order.STOP, Cause.HAND)
        case "crash":
            if machine.qemu is not None:
                machine.qemu.crash()
        case _:
            task = asyncio.get_running_loop().create_task(machine.set_network(up=action == "link-up"))
            task.add_done_callback(told)


def told(task: asyncio.Task[None]) -> None:
    """Logs why a hand's work was in vain."""
    if not task.cancelled() and isinstance(error := task.exception(), MachineFault):
        log.warning("%s", error)


def state_document(machine: "VirtualMachine") -> dict[str, Any]:
    image, qemu = machine.drive.image, machine.qemu
    return {
        "state": machine.host.state,
        "pid": qemu.pid if qemu is not None and machine.host.state is not HostState.OFF else None,
        "firmware": machine.spec.firmware,
        "uuid": str(machine.spec.identity.uuid),
        "serial": machine.spec.identity.serial,
        "macs": [nic.mac for nic in machine.spec.nics],
        "network_is_up": machine.network_is_up,
        "serial_log": str(machine.serial.log_file),
        "image_size": image.size if image is not None else None,
        "image_bytes_fetched": image.fetched if isinstance(image, HttpImage) else None,
    }
