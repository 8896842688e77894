"""Firmware: what runs, and its replacement by whatever way this BMC has."""

from __future__ import annotations

import msgspec

from drivers.driver import Call
from drivers.firmware_components import closest, meant_by, showing
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, action, action_info_uri, same_path
from drivers.redfish.firmware_delivery import Order
from drivers.redfish.firmware_inventory import read_inventory, update_service_path
from drivers.redfish.firmware_update import Update
from drivers.redfish.image_source import Image, open_file
from drivers.redfish.update_service import SIMPLE_UPDATE, UpdateService, preferred, why_not
from protocol.errors import ErrorCode, Issue, OperationError
from protocol.shapes import Nothing
from protocol.shapes.firmware import (
    FirmwareComponent,
    FirmwareReading,
    FirmwareUpdate,
    Transport,
    UpdateFirmware,
    UpdateFirmwareResult,
    UpdateOutcome,
)

__all__ = ["RedfishFirmware"]


class RedfishFirmware:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_firmware(self, arguments: Nothing, call: Call) -> FirmwareReading:
        """Every component that the BMC lists, further copies (staged, backup) told apart by `active`."""
        service = await self._connection.find_patiently(await update_service_path(self._connection, call), call)
        return FirmwareReading(components=await read_inventory(self._connection, service, call))

    async def update_firmware(self, arguments: UpdateFirmware, call: Call) -> UpdateFirmwareResult:
        """Does the updates one after the other; all of them are checked before anything is sent.

        Nothing is sent for components that show the expected version already. After a crash nothing is sent again:
        the agent settles it by reading. Raises OperationError INVALID_ARGUMENT with every fault, UNSUPPORTED, BUSY,
        and what `Update.run` raises; in a list the error's details say what was done and what was not.
        """
        service = await self._service(call)
        components = await read_inventory(self._connection, service.document, call)
        planner = _Planner(self._connection, service, arguments, components, call)
        orders = await planner.orders()
        outcomes: list[UpdateOutcome] = []
        for number, order in enumerate(orders):
            if number:
                document = await self._connection.get(service.path, call)
                components = await read_inventory(self._connection, document, call)
            try:
                outcomes.append(await self._one(order, service, components, call))
            except OperationError as error:
                if len(orders) > 1:
                    _tell_of_list(error, arguments.wanted, outcomes)
                raise
        return _result(outcomes, of_list=bool(arguments.updates))

    async def _one(
        self, order: Order, service: UpdateService, components: list[FirmwareComponent], call: Call
    ) -> UpdateOutcome:
        already = showing(order.expected, order.targets, components) if order.expected is not None else []
        if already:
            versions = {item.id or item.name: item.version for item in already}
            return UpdateOutcome(image=order.image.shown, changed=False, before=versions, after=versions)
        return await Update(self._connection, order, service, components, call).run()

    async def _service(self, call: Call) -> UpdateService:
        connection = self._connection
        path = await update_service_path(connection, call)
        document = await connection.find_patiently(path, call)
        if path is None or document is None:
            raise OperationError(ErrorCode.UNSUPPORTED, "this BMC has no update service")
        try:
            # Who made it decides how it is updated, and whether it is well afterwards.
            await connection.service.system(call)
        except OperationError as error:
            if error.code is not ErrorCode.UNSUPPORTED:
                raise
        info: Document | None = None
        offered = action(document, SIMPLE_UPDATE)
        if offered is not None:
            info = await connection.find_patiently(action_info_uri(offered), call)
        service = UpdateService(path, document, await connection.service.manners_so_far(call), info)
        if not service.is_on:
            raise OperationError(
                ErrorCode.UNSUPPORTED, f"the BMC's update service is switched off ({path}, ServiceEnabled)"
            )
        return service


class _Planner:
    """Turns what is asked into orders, and finds every fault on the way."""

    def __init__(
        self,
        connection: RedfishConnection,
        service: UpdateService,
        arguments: UpdateFirmware,
        components: list[FirmwareComponent],
        call: Call,
    ) -> None:
        self._connection = connection
        self._service = service
        self._arguments = arguments
        self._components = components
        self._call = call
        self._faults: list[Issue] = []
        self._impossible: list[Issue] = []

    async def orders(self) -> list[Order]:
        """Raises OperationError with every fault: UNSUPPORTED where only the BMC's ways are at fault."""
        listed = bool(self._arguments.updates)
        orders = []
        for number, update in enumerate(self._arguments.wanted):
            order = await self._order(update, f"updates[{number}]." if listed else "")
            if order is not None:
                orders.append(order)
        issues = [*self._faults, *self._impossible]
        if issues:
            raise OperationError(
                ErrorCode.INVALID_ARGUMENT if self._faults else ErrorCode.UNSUPPORTED,
                f"{self._call.operation}: " + "; ".join(map(str, issues)) + ". Nothing was sent",
                details={"issues": [msgspec.to_builtins(issue) for issue in issues]},
            )
        return orders

    async def _order(self, update: FirmwareUpdate, where: str) -> Order | None:
        paths = [await self._target(target, f"{where}targets[{i}]") for i, target in enumerate(update.targets)]
        targets = [path for path in paths if path is not None]
        try:
            image = Image.parse(update.image)
        except ValueError as error:
            self._faults.append(Issue(f"{where}image", str(error)))
            return None
        if image.path is not None and not self._has_file(image, f"{where}image"):
            return None
        transport = self._way(image, targets, f"{where}transport")
        if transport is None or len(targets) < len(paths):
            return None
        return Order(
            image=image,
            transport=transport,
            apply_time=self._arguments.apply_time,
            targets=update.targets,
            target_paths=list(dict.fromkeys(targets)),
            expected=update.expect_version,
        )

    def _has_file(self, image: Image, where: str) -> bool:
        try:
            with open_file(image.path or "", self._connection.files) as file:
                size = file.seek(0, 2)
        except OperationError as error:
            self._faults.append(Issue(where, error.message))
            return False
        largest = self._service.largest
        if largest is not None and size > largest:
            self._faults.append(Issue(where, f"has {size} bytes, and this BMC takes {largest} at most"))
            return False
        return True

    def _way(self, image: Image, targets: list[str], where: str) -> Transport | None:
        wanted = self._arguments.transport
        ways = preferred(self._service, image, targets) if wanted is Transport.AUTO else [wanted]
        reasons: dict[Transport, str] = {}
        for way in ways:
            reason = why_not(
                way,
                self._service,
                image,
                targets,
                self._arguments.apply_time,
                can_offer=self._connection.files is not None,
            )
            if reason is None:
                return way
            reasons[way] = reason
        said = "; ".join(f"{way.value}: {reason}" for way, reason in reasons.items())
        self._impossible.append(Issue(where, f"no way to update from {image.shown}: {said}"))
        return None

    async def _target(self, target: str, where: str) -> str | None:
        """The path that the BMC is told; None for one that is not there, which is noted as a fault."""
        found = meant_by(target, self._components)
        if not found:
            if target.startswith("/") and await self._connection.find_patiently(target, self._call) is not None:
                return target
            near = closest(target, self._components)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {self._listed()}"
            self._faults.append(Issue(where, f"this BMC lists no component {target!r}", hint))
            return None
        if any(same_path(target, path) for item in found for path in item.related):
            return target
        if len({item.path or item.id for item in found}) > 1:
            ids = ", ".join(item.id or item.name for item in found)
            self._faults.append(
                Issue(where, f"{target!r} names {len(found)} components", f"give one of the ids {ids}")
            )
            return None
        component = found[0]
        if component.updateable is False:
            self._faults.append(Issue(where, f"{target!r} cannot be updated by this BMC (Updateable is false)"))
            return None
        if self._service.manners.targets_by_relation and component.related:
            return component.related[0]
        return component.path or target

    def _listed(self) -> str:
        ids = [item.id or item.name for item in self._components if item.active and item.updateable is not False]
        return ", ".join(ids[:20]) + (" and more" if len(ids) > 20 else "")


def _tell_of_list(error: OperationError, wanted: list[FirmwareUpdate], done: list[UpdateOutcome]) -> None:
    """Adds to a failure which updates of the list were done before, and which were not begun."""
    images = [_shown(update.image) for update in wanted]
    left = images[len(done) + 1 :]
    error.message = (
        f"update {len(done) + 1} of {len(images)} failed: {error.message}"
        + (f". Done before: {', '.join(images[: len(done)])}" if done else "")
        + (f". Not done: {', '.join(left)}" if left else "")
    )
    error.args = (error.message,)
    error.details = {
        **error.details,
        "done": msgspec.to_builtins(done),
        "failed": images[len(done)],
        "notDone": left,
    }


def _shown(image: str) -> str:
    try:
        return Image.parse(image).shown
    except ValueError:
        return image


def _result(outcomes: list[UpdateOutcome], *, of_list: bool) -> UpdateFirmwareResult:
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}
    for outcome in outcomes:
        before = {**outcome.before, **before}
        after = {**after, **outcome.after}
    last = outcomes[-1]
    return UpdateFirmwareResult(
        before=before,
        after=after,
        task=last.task,
        reset_owed=any(outcome.reset_owed for outcome in outcomes),
        changed=any(outcome.changed for outcome in outcomes),
        transport=last.transport,
        updates=outcomes if of_list else [],
    )
