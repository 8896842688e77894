"""Boot: the override, the order and Secure Boot; every change is read back from the BMC."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from drivers.driver import Call
from drivers.redfish import boot_override, messages
from drivers.redfish.answer import Answer
from drivers.redfish.boot_override import BootView, Wanted, as_written, device_of, mode_of, override_of
from drivers.redfish.boot_places import BootPlaces, read_boot, read_boot_again
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, boolean, dig, link, settings_path, text
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.tasks import words_about
from drivers.redfish.walking import read_collection
from drivers.redfish.watching import comes_true
from protocol.errors import BmcMessage, ErrorCode, OperationError
from protocol.shapes import Nothing
from protocol.shapes.boot import (
    BootDevice,
    BootMode,
    BootReading,
    Override,
    SecureBootReading,
    SetBootDevice,
    SetBootDeviceResult,
    SetBootOrder,
    SetBootOrderResult,
    SetSecureBoot,
)

__all__ = ["RedfishBoot", "patch_when_ready", "secure_boot_reading", "unproven"]

_READ_BACK_SECONDS = 30.0
_REFUSED_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Written:
    """What became of a change: the last answer, and the resources that took it; none where that is not known."""

    answer: Answer | NoAnswer | None = None
    paths: frozenset[str] = frozenset()


class RedfishBoot:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_boot(self, arguments: Nothing, call: Call) -> BootReading:
        """The override that the next start will use, and the order in force."""
        return (await read_boot(self._connection, call)).view.reading()

    async def set_boot_device(self, arguments: SetBootDevice, call: Call) -> SetBootDeviceResult:
        """Sets the override. Where the BMC has no lasting one, it holds once, and `persistentSupported` is false.

        Raises OperationError: UNSUPPORTED with what the BMC lists, NOT_APPLIED, and the BMC's own refusals.
        """
        if arguments.http_boot_uri is not None and arguments.device is not BootDevice.UEFI_HTTP:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, "httpBootUri goes with the device uefiHttp only")
        places = await read_boot(self._connection, call)
        view = places.view
        manners = self._connection.service.manners
        targets = boot_override.targets_for(arguments.device, arguments.mode, view, manners)
        refused: OperationError | None = None
        for target in targets:
            wanted = boot_override.wanted_override(arguments, target, view, manners)
            try:
                written = await self._write_override(wanted, places, call)
            except Refused as failure:
                if failure.status != 400 or not messages.is_value_refused(failure.notes):
                    raise
                refused = failure
                continue
            try:
                result = await self._read_override_back(wanted, arguments, places, written, call)
            except OperationError as failure:
                # A target that is listed, taken and not kept: another of the BMC's words may be the right one.
                if failure.code is not ErrorCode.NOT_APPLIED or target == targets[-1]:
                    raise
                refused = failure
                continue
            if arguments.mode is None and boot_override.has_lost_uefi(wanted, view, result.mode):
                again = structs.replace(arguments, mode=BootMode.UEFI)
                return await self._set_mode_back(wanted, again, call)
            return result
        raise refused or OperationError(ErrorCode.UNSUPPORTED, f"this BMC cannot boot from {arguments.device}")

    async def _set_mode_back(self, wanted: Wanted, arguments: SetBootDevice, call: Call) -> SetBootDeviceResult:
        """Writes the override once more with its mode, for firmware that falls back to legacy boot without one."""
        places = await read_boot(self._connection, call)
        whole = replace(wanted, mode=boot_override.word_of(BootMode.UEFI, places.view))
        written = await self._write_override(whole, places, call)
        return await self._read_override_back(whole, arguments, places, written, call)

    async def set_boot_order(self, arguments: SetBootOrder, call: Call) -> SetBootOrderResult:
        """Puts the named entries first, in their order; the others follow as they were, so that none is lost.

        An entry is named as `getBoot` shows it, or by its boot option's id, display name or UEFI path.
        """
        places = await read_boot(self._connection, call)
        view = places.view
        known = {entry: entry for entry in view.order} | {entry.partition(":")[0]: entry for entry in view.order}
        if any(name not in known for name in arguments.order):
            known = await self._names_of_entries(places.system, view, call) | known
        order = _complete_order(arguments.order, known, view.order)
        paths = [places.system_path, places.settings_path]
        if view.settings_own_order:
            paths.reverse()
        body: Document = {"Boot": {"BootOrder": order}}
        answer = await self._patch_first([path for path in paths if path], body, call, places.known)
        now: BootView | None = None

        async def is_there() -> bool:
            nonlocal now
            now = (await read_boot(self._connection, call)).view
            return order in (now.order, now.pending_order)

        if not await comes_true(is_there, call, _READ_BACK_SECONDS) and not _is_scheduled(answer):
            shown = "it cannot be read since" if now is None else f"it reads {', '.join(now.order)}"
            words = await words_about(self._connection, answer, call)
            raise unproven(answer, "the boot order", shown, words)
        return SetBootOrderResult(order=order, pending=now is None or now.order != order)

    async def get_secure_boot(self, arguments: Nothing, call: Call) -> SecureBootReading:
        return secure_boot_reading(await self._connection.get(await self._secure_boot_path(call), call))

    async def set_secure_boot(self, arguments: SetSecureBoot, call: Call) -> SecureBootReading:
        """Switches Secure Boot for the next start; `pending` says what is not in force yet."""
        path = await self._secure_boot_path(call)
        document = await self._connection.get(path, call)
        if _secure_boot_setting(document) is arguments.enabled:
            return secure_boot_reading(document)
        settings = settings_path(document)
        paths = [settings, path] if settings is not None else [path]
        known = {path: document}
        answer = await self._patch_first(paths, {"SecureBootEnable": arguments.enabled}, call, known.get)

        async def is_there() -> bool:
            nonlocal document
            document = await self._connection.get(path, call)
            if _secure_boot_setting(document) is arguments.enabled:
                return True
            return settings is not None and arguments.enabled is boolean(
                await self._connection.find(settings, call), "SecureBootEnable"
            )

        scheduled = _is_scheduled(answer)
        if not await comes_true(is_there, call, 5.0 if scheduled else _READ_BACK_SECONDS) and not scheduled:
            words = await words_about(self._connection, answer, call)
            raise unproven(answer, "the Secure Boot setting", "it reads the old one", words)
        now = secure_boot_reading(document)
        if now.enabled is not arguments.enabled and now.pending is None:
            return SecureBootReading(enabled=now.enabled, pending=arguments.enabled)
        return now

    async def _write_override(self, wanted: Wanted, places: BootPlaces, call: Call) -> _Written:
        """Writes it where it belongs. Where the BMC says that this is not the place, the other resource is tried
        once; where it refuses a part, the whole is sent once. A lost answer is handed back: reading decides."""
        view = places.view
        tries = [(wanted, False), (wanted, True), (boot_override.full(wanted, view), False)]
        settings = places.settings_path
        first: Refused | None = None
        for attempt, elsewhere in tries:
            if elsewhere:
                settings = settings or self._place_named(first)
                if settings is None or first is None or not _is_elsewhere(first):
                    continue
            if attempt is not wanted and (attempt == wanted or first is None or first.status != 400):
                continue
            to_system, to_settings = as_written(attempt, view)
            if elsewhere:
                both = {**to_system, **to_settings}
                to_system, to_settings = (both, {}) if to_settings else ({}, both)
            written = _Written()
            try:
                for path, boot in ((settings, to_settings), (places.system_path, to_system)):
                    if path is not None and boot:
                        answer = await self._patch(path, {"Boot": boot}, call, places.known(path))
                        written = _Written(answer, written.paths | {path})
            except NoAnswer as lost:
                return _Written(lost)
            except Refused as refused:
                first = first or refused
                if not (refused.status == 400 or refused.absent) or messages.is_value_refused(refused.notes):
                    raise
                continue
            return written
        if first is not None:
            raise first
        return _Written()

    def _place_named(self, refused: Refused | None) -> str | None:
        """Where a refusal says that boot settings go, remembered for the readings that follow."""
        service = self._connection.service
        if refused is not None and service.boot_settings_path is None and service.system_path is not None:
            service.boot_settings_path = messages.place_named(refused.notes, service.system_path)
        return service.boot_settings_path

    async def _read_override_back(
        self, wanted: Wanted, arguments: SetBootDevice, before: BootPlaces, written: _Written, call: Call
    ) -> SetBootDeviceResult:
        """Reads what was written, and whatever shows a part of the override besides."""
        answer = written.answer
        changed = written.paths | before.of_override if written.paths else frozenset[str]()
        view: BootView | None = None

        async def is_there() -> bool:
            nonlocal view
            view = (await read_boot_again(self._connection, before, changed, call)).view
            return wanted.is_in(view, arguments.mode is not None)

        there = await comes_true(is_there, call, _READ_BACK_SECONDS)
        if view is None:
            raise unproven(answer, "the boot override", "it cannot be read since")
        if not there:
            now = view.reading()
            raise unproven(
                answer,
                f"the boot override {wanted.target} ({wanted.enabled})",
                f"it reads {now.raw_target} ({now.enabled.value})",
                await words_about(self._connection, answer, call),
            )
        enabled = override_of(view.value(boot_override.ENABLED))
        supported = wanted.persistent_supported
        if supported is None and arguments.persistent:
            supported = enabled is Override.CONTINUOUS
        raw = view.value(boot_override.TARGET)
        return SetBootDeviceResult(
            target=device_of(raw),
            raw_target=raw,
            enabled=enabled,
            mode=mode_of(view.value(boot_override.MODE)),
            http_boot_uri=view.http_uri,
            persistent_supported=supported,
        )

    async def _patch_first(
        self, paths: list[str], body: Document, call: Call, known: Callable[[str], Document | None]
    ) -> Answer | NoAnswer:
        """Writes to the first resource, and to the next where the BMC says that it is not the place. A lost answer
        is handed back: reading decides. `known`: what was just read at a path."""
        paths = list(paths)
        for path in paths:
            try:
                return await self._patch(path, body, call, known(path))
            except NoAnswer as lost:
                return lost
            except Refused as refused:
                if path == paths[-1]:
                    is_system = path == self._connection.service.system_path
                    named = self._place_named(refused) if is_system else messages.place_named(refused.notes, path)
                    paths += [named] if named is not None and named not in paths else []
                if path == paths[-1] or not _is_elsewhere(refused):
                    raise
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no resource for it")

    async def _patch(self, path: str, body: Document, call: Call, known: Document | None) -> Answer:
        """A PATCH that is asked again while the host's firmware is in its self-test."""
        return await patch_when_ready(lambda: self._connection.patch(path, body, call, known=known), call)

    async def _names_of_entries(self, system: Document, view: BootView, call: Call) -> dict[str, str]:
        """The entries of the order by every name that their boot options have."""
        names: dict[str, str] = {}
        path = link(system, "Boot", "BootOptions")
        for option in await read_collection(self._connection, path, call):
            reference = text(option, "BootOptionReference")
            entry = next((entry for entry in view.order if reference and entry.partition(":")[0] == reference), None)
            if entry is not None:
                found = (text(option, key) for key in ("Id", "DisplayName", "UefiDevicePath"))
                names |= {name: entry for name in found if name is not None}
        return names

    async def _secure_boot_path(self, call: Call) -> str:
        path = link(await self._connection.service.system(call), "SecureBoot")
        if path is None:
            raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no Secure Boot")
        return path


async def patch_when_ready(send: Callable[[], Awaitable[Answer]], call: Call) -> Answer:
    """Sends; again in a while where the BMC says that it is not ready (Launchpad bug 2136275: iLO during POST)."""
    waited, pause = 0.0, 2.0
    while True:
        try:
            return await send()
        except Refused as refused:
            seconds = refused.wait if refused.wait is not None else pause
            if (
                refused.status == 401
                or not refused.transient
                or waited + seconds > _REFUSED_SECONDS
                or seconds >= call.remaining
            ):
                raise
            await call.sleep(seconds, "the BMC was not ready for the change")
            waited, pause = waited + seconds, min(pause * 1.5, 10.0)


def _is_elsewhere(refused: Refused) -> bool:
    """Whether the BMC says that this is not the place for it."""
    return refused.absent or messages.is_not_writable(refused.notes)


def secure_boot_reading(document: Document) -> SecureBootReading:
    """What is in force since the last start, and what waits for the next."""
    setting = _secure_boot_setting(document)
    current = text(document, "SecureBootCurrentBoot")
    if current is None:
        return SecureBootReading(enabled=setting)
    enabled = current.lower() == "enabled"
    return SecureBootReading(
        enabled=enabled, pending=setting if setting is not None and setting is not enabled else None
    )


def _secure_boot_setting(document: Document) -> bool | None:
    return boolean(document, "SecureBootEnable")


def _complete_order(asked: list[str], known: dict[str, str], present: list[str]) -> list[str]:
    """The whole order with the asked entries first. `known`: the entries by their names."""
    if not present:
        raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no boot order")
    unknown = [name for name in asked if name not in known]
    order = list(dict.fromkeys(known[name] for name in asked if name in known))
    if unknown or not order:
        raise OperationError(
            ErrorCode.INVALID_ARGUMENT,
            (f"the BMC knows no boot entry {', '.join(unknown)}; " if unknown else "the order is empty; ")
            + f"it has {', '.join(present)}",
            details={"known": list(present)},
        )
    return order + [entry for entry in present if entry not in order]


def unproven(
    answer: Answer | NoAnswer | None, what: str, but: str, words: Iterable[BmcMessage] = ()
) -> OperationError:
    """The error for a change that no reading shows: taken and not applied, or lost on the way. `words`: what the BMC
    said of it."""
    if isinstance(answer, NoAnswer):
        return OperationError(
            ErrorCode.OUTCOME_UNKNOWN, f"{what} was sent once and had no answer ({answer.message}); {but}", bmc=words
        )
    return OperationError(ErrorCode.NOT_APPLIED, f"the BMC took {what}, but {but}", bmc=words)


def _is_scheduled(answer: Answer | NoAnswer) -> bool:
    """Whether the BMC says that the change is a job, done at the next start."""
    if isinstance(answer, NoAnswer):
        return False
    return answer.status == 202 or "Location" in answer.headers or dig(answer.said(), "JobId") is not None
