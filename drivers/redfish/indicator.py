"""The locating light: `LocationIndicatorActive`, and `IndicatorLED` which it replaced, on system or chassis."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.answer import Answer
from drivers.redfish.boot import patch_when_ready, unproven
from drivers.redfish.document import Document, boolean, link, text
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.tasks import words_about
from drivers.redfish.watching import comes_true
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.management import Indicator, IndicatorReading

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["find_light", "get_indicator", "has_light", "light_of", "set_indicator", "writings"]

_READ_BACK_SECONDS = 20.0
_LED = {"lit": Indicator.ON, "blinking": Indicator.BLINK, "off": Indicator.OFF}
_WORDS = {
    Indicator.ON: ("Lit", "Blinking"),
    Indicator.BLINK: ("Blinking", "Lit"),
    Indicator.OFF: ("Off",),
}


def has_light(document: Document) -> bool:
    return boolean(document, "LocationIndicatorActive") is not None or "IndicatorLED" in document


def light_of(document: Document) -> Indicator | None:
    """The light's state. Where both properties are there, the LED may be the health light (Dell: Lit while not
    locating), so that the newer one decides."""
    active = boolean(document, "LocationIndicatorActive")
    led = _LED.get((text(document, "IndicatorLED") or "").lower())
    if active is None:
        return led
    if not active:
        return Indicator.OFF
    return Indicator.BLINK if led is Indicator.BLINK else Indicator.ON


def writings(document: Document, wanted: Indicator) -> list[Document]:
    """The bodies that ask for the state, best first."""
    bodies: list[Document] = []
    if boolean(document, "LocationIndicatorActive") is not None:
        bodies.append({"LocationIndicatorActive": wanted is not Indicator.OFF})
    if "IndicatorLED" in document:
        bodies += [{"IndicatorLED": word} for word in _WORDS[wanted]]
    return bodies


async def find_light(connection: RedfishConnection, call: Call) -> tuple[str, Document]:
    """The resource that has the light. Raises OperationError UNSUPPORTED where none has."""
    system = await connection.service.system(call)
    if has_light(system):
        return connection.service.system_path or link(system) or "", system
    for path in await connection.service.chassis(call, system):
        chassis = await connection.find_patiently(path, call)
        if chassis is not None and has_light(chassis):
            return path, chassis
    raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no locating light")


async def get_indicator(connection: RedfishConnection, call: Call) -> IndicatorReading:
    _, document = await find_light(connection, call)
    return IndicatorReading(state=light_of(document))


async def set_indicator(connection: RedfishConnection, wanted: Indicator, call: Call) -> IndicatorReading:
    """Switches the light. A light that can only blink, or only be lit, does what it can; the result tells which."""
    path, document = await find_light(connection, call)
    if light_of(document) is wanted:
        return IndicatorReading(state=wanted)
    answer: Answer | NoAnswer | None = None
    bodies = writings(document, wanted)
    for number, body in enumerate(bodies, start=1):
        try:
            answer = await patch_when_ready(partial(connection.patch, path, body, call, known=document), call)
        except NoAnswer as failure:
            answer = failure
        except Refused as refused:
            last = number == len(bodies)
            if last or not (messages.is_value_refused(refused.notes) or messages.is_not_writable(refused.notes)):
                raise
            continue
        break
    state: Indicator | None = None

    async def is_there() -> bool:
        nonlocal state
        state = light_of(await connection.get(path, call))
        return (state is Indicator.OFF) is (wanted is Indicator.OFF) and state is not None

    if not await comes_true(is_there, call, _READ_BACK_SECONDS):
        words = await words_about(connection, answer, call)
        raise unproven(answer, f"the light {wanted}", f"it reads {state}", words)
    return IndicatorReading(state=state)
