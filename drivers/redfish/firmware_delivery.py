"""Giving an update to a BMC: the service is claimed and set up, the image offered or sent, the order given once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drivers.driver import Call
from drivers.redfish import upload
from drivers.redfish.answer import Answer
from drivers.redfish.document import Document
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.image_source import Image, open_content
from drivers.redfish.update_service import UpdateService, after_refusal, simple_body
from protocol.errors import ErrorCode, OperationError
from protocol.shapes.bios import ApplyTime
from protocol.shapes.firmware import Transport

if TYPE_CHECKING:
    from drivers.redfish.connection import RedfishConnection

__all__ = ["Delivery", "Order"]

_RELEASE_SECONDS = 4.0
_MOST_REFUSALS = 3


@dataclass(frozen=True, slots=True)
class Order:
    """One update as it is to be done: everything was checked, nothing was sent."""

    image: Image
    transport: Transport
    apply_time: ApplyTime
    targets: list[str]
    """As asked: ids, names or paths."""
    target_paths: list[str]
    """As the BMC is told."""
    expected: str | None


class Delivery:
    """One order on its way to the BMC."""

    def __init__(self, connection: RedfishConnection, order: Order, service: UpdateService, call: Call) -> None:
        self._connection = connection
        self._order = order
        self._service = service
        self._call = call
        self._url = ""
        self._percent = -1

    async def check_free(self) -> None:
        """Reads the service shortly before anything is sent: the session lives then, and nobody else is at work."""
        document = await self._connection.get(self._service.path, self._call)
        self._service = replace(self._service, document=document)
        progress = self._service.progress
        if self._service.is_claimed:
            raise OperationError(
                ErrorCode.BUSY,
                "another client has claimed the BMC's update service (HttpPushUriTargetsBusy); nothing was sent. "
                f"If none is at work any more, release it: PATCH {self._service.path} with "
                '{"HttpPushUriTargetsBusy": false}',
            )
        if progress is not None and progress.is_working:
            raise OperationError(
                ErrorCode.BUSY,
                f"the BMC is busy with another update (its update service is in the state {progress.state}); "
                "nothing was sent",
            )

    @contextlib.asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """While its context is open the service is claimed and the image offered, where this way needs it."""
        async with self._prepared(), self._offered() as url:
            self._url = url
            yield

    @contextlib.asynccontextmanager
    async def _prepared(self) -> AsyncIterator[None]:
        """A push goes by settings of the service: they are set before, and the claim is given back after."""
        claim = self._claim()
        settings = [body for body in (self._apply_setting(), claim) if body]
        claimed = False
        try:
            for body in settings:
                claimed = claimed or body is claim
                await self._set(body)
            yield
        finally:
            if claimed:
                await self._release(claim)

    async def _set(self, body: Document) -> None:
        try:
            await self._connection.patch(self._service.path, body, self._call)
        except NoAnswer as failure:
            raise OperationError(
                ErrorCode.UNREACHABLE,
                f"preparing the update service had no answer ({failure.message}); no image was sent",
            ) from failure
        except Refused as refused:
            if "HttpPushUriOptions" not in body or self._order.apply_time is ApplyTime.ON_RESET:
                raise
            self._call.observed["applyTimeNotSet"] = refused.message

    def _apply_setting(self) -> Document:
        """A plain push goes by a setting of the service, and has no parameter for it."""
        if self._order.transport is not Transport.PUSH:
            return {}
        value = self._service.apply_value(Transport.PUSH, self._order.apply_time)
        if value is None or value == self._service.push_apply_time:
            return {}
        return {"HttpPushUriOptions": {"HttpPushUriApplyTime": {"ApplyTime": value}}}

    def _claim(self) -> Document:
        """Lenovo XCC wants to be claimed for both kinds of push (metal-toolbox/bmclib)."""
        body: Document = {}
        if self._order.transport is Transport.SIMPLE:
            return body
        if self._service.is_claimable:
            body["HttpPushUriTargetsBusy"] = True
        listed = self._service.push_targets
        if self._order.transport is Transport.PUSH and listed is not None and listed != self._order.target_paths:
            # Targets that somebody has left there would decide what this image is written to.
            body["HttpPushUriTargets"] = self._order.target_paths
        return body

    @contextlib.asynccontextmanager
    async def _offered(self) -> AsyncIterator[str]:
        """The address that the BMC is to fetch from; a file is offered until all is over. Empty for a push."""
        image, files = self._order.image, self._connection.files
        if self._order.transport is not Transport.SIMPLE or image.path is None:
            yield image.url or ""
            return
        if files is None:
            raise OperationError(ErrorCode.UNSUPPORTED, "only a site agent can offer a file to a BMC")
        host = self._connection.target.parsed.host
        url = await files.offer(image.path, image.name, self._call.remaining, reached_by=host)
        try:
            yield url
        finally:
            await files.withdraw(url)

    async def _release(self, settings: Document) -> None:
        body: Document = {}
        if "HttpPushUriTargetsBusy" in settings:
            body["HttpPushUriTargetsBusy"] = False
        if settings.get("HttpPushUriTargets"):
            body["HttpPushUriTargets"] = []
        if not body:
            return
        call = replace(self._call, deadline=asyncio.get_running_loop().time() + _RELEASE_SECONDS)
        try:
            await self._connection.patch(self._service.path, body, call)
        except OperationError as error:
            self._call.observed["updateServiceNotReleased"] = error.message

    async def give(self) -> Answer | OperationError:
        """Sends it once. Returns what was lost, where it may have been done; raises where it was certainly not."""
        self._call.progress(f"sending {self._order.image.name}", 0)
        try:
            match self._order.transport:
                case Transport.MULTIPART:
                    return await self._push(self._service.multipart_path or "")
                case Transport.PUSH:
                    return await self._push(self._service.push_path or "")
                case _:
                    return await self._simple_update(self._url)
        except NoAnswer as failure:
            return failure
        except Refused as refused:
            if refused.certainly_not_done:
                raise
            # A web server whose service goes away under it says 500 or 502 to an order that is carried out.
            return refused

    async def _simple_update(self, url: str) -> Answer:
        order = self._order
        body = simple_body(self._service, order.image, url, order.target_paths, order.apply_time)
        protocol = order.image.protocol or url.partition(":")[0].upper()
        if order.target_paths and "Targets" not in body:
            self._call.observed["targetsNotSent"] = ", ".join(order.target_paths)
        for _ in range(_MOST_REFUSALS):
            try:
                return await self._order_it(body)
            except Refused as refused:
                other = after_refusal(body, refused.notes, protocol) if refused.status in (400, 422) else None
                if other is None:
                    raise
                if "Targets" in body and "Targets" not in other:
                    self._call.observed["targetsNotSent"] = ", ".join(order.target_paths)
                body = other
        return await self._order_it(body)

    async def _order_it(self, body: Document) -> Answer:
        target = self._service.simple_target or ""
        return await self._connection.order(target, body, self._call, look=self._service.path)

    async def _push(self, path: str) -> Answer:
        """Sends the image; once more where the session had ended: that refusal proves that nothing was done with it,
        and reading the service renews the session."""
        try:
            return await self._push_once(path)
        except Refused as refused:
            if refused.status != 401:
                raise
        await self._connection.read(self._service.path, self._call)
        return await self._push_once(path)

    async def _push_once(self, path: str) -> Answer:
        made = self._form if self._order.transport is Transport.MULTIPART else await self._plain()
        async with open_content(self._order.image, self._connection.files, self._connection.images) as content:
            largest = self._service.largest
            if largest is not None and content.size > largest:
                raise OperationError(
                    ErrorCode.INVALID_ARGUMENT,
                    f"the image {self._order.image.shown} has {content.size} bytes; this BMC takes {largest} at most",
                )
            return await self._connection.upload(path, made(content), self._call)

    def _form(self, content: upload.Content) -> upload.Upload:
        parameters: Document = {}
        if self._order.target_paths or self._service.manners.push_wants_targets:
            parameters["Targets"] = self._order.target_paths
        value = self._service.apply_value(Transport.MULTIPART, self._order.apply_time)
        if value is not None:
            parameters["@Redfish.OperationApplyTime"] = value
        return upload.redfish_form(content, parameters, self._told)

    async def _plain(self) -> Callable[[upload.Content], upload.Upload]:
        if self._service.manners.push_form == "redfish":
            return lambda content: upload.as_it_is(content, self._told)
        key = await self._connection.session_key(self._call)
        if key is None:
            raise OperationError(
                ErrorCode.UNSUPPORTED, "this BMC's upload form wants the key of a session, and the login has none"
            )
        return lambda content: upload.ilo_form(content, key, self._told)

    def _told(self, sent: int, length: int) -> None:
        percent = 100 * sent // length
        if percent != self._percent:
            self._percent = percent
            self._call.progress(f"sending {self._order.image.name}: {sent >> 20} of {length >> 20} MiB", percent)
