"""BIOS: its attributes with their registry, changes that are read back, and the way to the defaults."""

from collections.abc import Mapping

import msgspec

from drivers.driver import Call
from drivers.redfish import messages
from drivers.redfish.answer import Answer
from drivers.redfish.bios_defaults import order_defaults
from drivers.redfish.bios_registry import AttributeRegistry, Definition, same_value
from drivers.redfish.bios_request import (
    APPLY_TIMES,
    BiosRequest,
    apply_time_fault,
    check_attributes,
    differing,
    raise_refusal,
)
from drivers.redfish.bios_view import BiosView, is_secret, offered_apply_times
from drivers.redfish.boot import patch_when_ready, unproven
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.document import Document, dig, link, settings_path
from drivers.redfish.failures import NoAnswer, Refused
from drivers.redfish.registries import read_bios_registry
from drivers.redfish.tasks import Ending, Outcome, follow_task, words_about
from drivers.redfish.watching import comes_true
from protocol.errors import BmcMessage, ErrorCode, Issue, OperationError
from protocol.shapes import Nothing
from protocol.shapes.bios import (
    ApplyTime,
    BiosReading,
    BiosValue,
    GetBios,
    ResetBiosResult,
    SetBios,
    SetBiosResult,
)

__all__ = ["RedfishBios"]

_READ_BACK_SECONDS = 60.0


class RedfishBios:
    def __init__(self, connection: RedfishConnection) -> None:
        self._connection = connection

    async def get_bios(self, arguments: GetBios, call: Call) -> BiosReading:
        """The attributes with what their registry says of them. Passwords are never shown.

        Raises OperationError UNSUPPORTED where this BMC shows no BIOS attributes.
        """
        view = await self._view(call)
        registry, _ = await read_bios_registry(self._connection, view.registry_name, call)
        return view.reading(registry, only_pending=arguments.pending)

    async def set_bios(self, arguments: SetBios, call: Call) -> SetBiosResult:
        """Asks for values; returns once the BMC's job has ended and they read back, or once they wait for a reset.

        Nothing is sent before all is checked; values that are in force or wait already are not sent. After a crash,
        asking again settles it by reading. Raises OperationError: INVALID_ARGUMENT with every fault, UNSUPPORTED
        (apply time, or no way to write), CONFLICT (a waiting job refuses a second change), NOT_APPLIED,
        OUTCOME_UNKNOWN (the answer was lost and no reading shows the values).

        Dell: Secure Boot that is to change with the same start belongs among these attributes (SecureBoot). Patched
        on its own before them, it spoils their job (metal-toolbox/bmclib pull requests 467 and 471).
        """
        view = await self._view(call, patient=True)
        wanted, registry = await self._checked(arguments, view, call)
        offered = offered_apply_times(view)
        at_once = arguments.apply_time is ApplyTime.IMMEDIATE
        sent = differing(wanted, view, at_once=at_once)
        if not sent:
            return SetBiosResult(changed={}, pending=_shown(view.pending, registry))
        target = self._target(view)
        apply_time = self._apply_time(arguments.apply_time, offered)
        call.progress(f"setting {', '.join(sent)}", None)
        answer, apply_time = await self._write(target, sent, apply_time, view, call)
        at_reset = apply_time == APPLY_TIMES[ApplyTime.ON_RESET]
        ending = await follow_task(self._connection, answer, call, staged_ends=not at_once, at_reset=at_reset)
        if ending.outcome is Outcome.FAILED:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                f"the BMC took the BIOS settings {', '.join(sent)} as a task, and the task failed",
                bmc=ending.words,
                details={"task": ending.path},
            )
        # A value that is in force after a reset only is proven by the settings object alone.
        waits = not at_once and ending.outcome in (Outcome.STAGED, Outcome.UNKNOWN)
        before = view if waits and all(_needs_reset(name, registry) for name in sent) else None
        now = await self._read_back(sent, registry, answer, ending, at_once, before, call)
        waiting = dict(now.pending) if now is not None else {}
        if ending.outcome is Outcome.STAGED:
            # The BIOS may show the values before the job has run (Dell, NVIDIA libredfish pull request 25).
            waiting |= sent
        elif target == view.path and not at_once:
            # Written to the BIOS itself, the values read back at once and are used by the next start.
            waiting |= {name: value for name, value in sent.items() if _needs_reset(name, registry)}
        return SetBiosResult(changed=sent, pending=_shown(waiting, registry), task=ending.path)

    async def reset_bios(self, arguments: Nothing, call: Call) -> ResetBiosResult:
        """Orders the defaults, once; they are loaded with the next start of the host.

        Raises OperationError: UNSUPPORTED, CONFLICT, NOT_APPLIED (the BMC took it and reads otherwise),
        OUTCOME_UNKNOWN (the answer was lost and no reading shows that the defaults wait).
        """
        view = await self._view(call, patient=True, needs_attributes=False)
        return await order_defaults(self._connection, view, lambda: self._view(call, needs_attributes=False), call)

    # --- reading ---

    async def _view(self, call: Call, *, patient: bool = False, needs_attributes: bool = True) -> BiosView:
        """The BIOS and its settings object. With `patient` a busy settings object is waited for: what waits in it
        decides what is sent."""
        answer = await self._read_bios(call)
        document = self._connection.document_of(answer)
        if needs_attributes and not isinstance(dig(document, "Attributes"), dict):
            raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows a BIOS without attributes")
        path = self._connection.service.bios_path or answer.path
        place = settings_path(document)
        look = self._connection.find_patiently if patient else self._connection.find
        settings = await look(place, call)
        return BiosView.of(
            path,
            document,
            place,
            settings,
            takes_patch=_allows_patch(answer),
            manners=self._connection.service.manners,
        )

    async def _with_settings_of_now(self, before: BiosView, call: Call) -> BiosView | None:
        """The BIOS as it was, with its settings object as it is; None where that cannot be read."""
        settings = await self._connection.find(before.settings_path, call)
        return None if settings is None else before.with_settings(settings)

    async def _read_bios(self, call: Call) -> Answer:
        """The BIOS where it was found before, else where the system says it is."""
        service = self._connection.service
        if service.bios_path is not None:
            try:
                return await self._connection.read(service.bios_path, call)
            except Refused as refused:
                if refused.status not in (404, 410):
                    raise
                service.bios_path = None
        path = link(await service.system(call), "Bios")
        if path is None:
            raise OperationError(ErrorCode.UNSUPPORTED, "this BMC shows no BIOS")
        answer = await self._connection.read(path, call)
        service.bios_path = path
        return answer

    # --- checking ---

    async def _checked(
        self, arguments: SetBios, view: BiosView, call: Call
    ) -> tuple[dict[str, BiosValue], AttributeRegistry]:
        """The values as the BIOS writes them. Raises INVALID_ARGUMENT with every fault; before a refusal that rests
        on a kept registry the registry is read again."""
        if not arguments.attributes:
            raise _invalid([Issue("attributes", "is empty", "name what is to be set, and to what")])
        if view.has_own_form:
            raise OperationError(
                ErrorCode.UNSUPPORTED,
                "this BIOS shows its attributes in its maker's own form, and how it takes new values is not known",
            )
        registry, fresh = await read_bios_registry(self._connection, view.registry_name, call, patient=True)
        wanted, issues = check_attributes(arguments.attributes, view, registry)
        if issues and not fresh:
            registry, _ = await read_bios_registry(
                self._connection, view.registry_name, call, afresh=True, patient=True
            )
            wanted, issues = check_attributes(arguments.attributes, view, registry)
        refusal = apply_time_fault(arguments.apply_time, offered_apply_times(view))
        if issues:
            raise _invalid([*issues, *([Issue("applyTime", refusal)] if refusal else [])])
        if refusal:
            raise OperationError(ErrorCode.UNSUPPORTED, refusal, details={"offered": list(offered_apply_times(view))})
        return wanted, view.registry_or_own(registry)

    def _target(self, view: BiosView) -> str:
        """Where new values are written: the settings object, or the BIOS itself where it has none."""
        if view.settings_path is not None and (view.settings is not None or view.takes_patch is not True):
            return view.settings_path
        if view.takes_patch is False:
            raise OperationError(
                ErrorCode.UNSUPPORTED, "this BIOS names no settings object, and takes no change itself (Allow)"
            )
        return view.path

    def _apply_time(self, wanted: ApplyTime, offered: list[str]) -> str | None:
        """The word that is sent; None where the BMC lists no apply times, or lists them and takes none."""
        if not offered or (wanted is ApplyTime.ON_RESET and self._connection.service.manners.bios_refuses_apply_time):
            return None
        return APPLY_TIMES[wanted]

    # --- writing ---

    async def _write(
        self,
        target: str,
        attributes: Mapping[str, BiosValue],
        apply_time: str | None,
        view: BiosView,
        call: Call,
    ) -> tuple[Answer | NoAnswer, str | None]:
        """One PATCH, and the apply time that went with it. A refusal of the apply time alone is answered without it,
        where that means the same."""
        known = view.settings if target == view.settings_path else view.document
        request = BiosRequest(attributes, apply_time)
        try:
            return await self._patch(target, request, known, call), apply_time
        except NoAnswer as lost:
            return lost, apply_time
        except Refused as refused:
            unwanted = (
                apply_time == APPLY_TIMES[ApplyTime.ON_RESET]
                and refused.status in (400, 422, 501)
                and messages.is_not_writable(refused.notes)
                and _names_apply_time(refused)
            )
            if not unwanted:
                raise_refusal(refused, "BIOS settings")
        try:
            return await self._patch(target, BiosRequest(attributes), known, call), None
        except NoAnswer as lost:
            return lost, None
        except Refused as refused:
            raise_refusal(refused, "BIOS settings")

    async def _patch(self, target: str, request: BiosRequest, known: Document | None, call: Call) -> Answer:
        async def send() -> Answer:
            try:
                return await self._connection.patch(target, request.body, call, known=known)
            except Refused as refused:
                if messages.is_committed(refused.notes):
                    # It looks like a state that passes, and only a restart of the host ends it.
                    raise_refusal(refused, "BIOS settings")
                raise

        return await patch_when_ready(send, call)

    # --- reading back ---

    async def _read_back(
        self,
        sent: Mapping[str, BiosValue],
        registry: AttributeRegistry,
        answer: Answer | NoAnswer,
        ending: Ending,
        at_once: bool,
        before: BiosView | None,
        call: Call,
    ) -> BiosView | None:
        """The BIOS once it shows the values, in force or waiting; None where a staged job's cannot be read now.

        `before`: the BIOS as it was read before, where its settings object alone can prove the change.
        Raises NOT_APPLIED, OUTCOME_UNKNOWN.
        """
        readable = {
            name: value
            for name, value in sent.items()
            if not (name in registry.definitions and registry.definitions[name].write_only)
        }
        view: BiosView | None = None
        missing: dict[str, BiosValue] = dict(readable)

        async def is_there() -> bool:
            nonlocal view, missing
            shown = await self._with_settings_of_now(before, call) if before is not None else None
            for look in (shown, None):
                view = look or await self._view(call)
                missing = {name: value for name, value in readable.items() if not _has(view, name, value, at_once)}
                if not missing:
                    return True
            return False

        # A job that waits for the host's start is a proof of its own, whatever the settings object shows of it.
        staged = ending.outcome is Outcome.STAGED
        there = await comes_true(is_there, call, 0.0 if staged else _READ_BACK_SECONDS)
        if staged:
            return view
        if view is not None and there:
            self._check_scheduled(view, answer, ending, sent)
            return view
        if view is None:
            raise unproven(answer, f"the BIOS settings {', '.join(sent)}", "the BIOS cannot be read since")
        words = await words_about(self._connection, answer, call) or ending.words
        raise _not_shown(missing, view, answer, ending, words)

    def _check_scheduled(
        self, view: BiosView, answer: Answer | NoAnswer, ending: Ending, sent: Mapping[str, BiosValue]
    ) -> None:
        """Raises NOT_APPLIED for values that wait, and that nothing will ever apply."""
        waits = any(name in view.pending for name in sent)
        named = ending.path is not None or bool(offered_apply_times(view)) or isinstance(answer, NoAnswer)
        if waits and not named and self._connection.service.manners.bios_needs_apply_time:
            raise OperationError(
                ErrorCode.NOT_APPLIED,
                "the BMC keeps the BIOS settings as pending, and its firmware lists no apply time by which they "
                "could be scheduled: update the BMC's firmware, or create a configuration job at the BMC",
                details={"pending": sorted(view.pending)},
            )


def _names_apply_time(refused: Refused) -> bool:
    return any(
        "applytime" in said.lower()
        for note in refused.notes
        for said in (note.text, note.resolution, *note.properties)
    )


def _needs_reset(name: str, registry: AttributeRegistry) -> bool:
    definition = registry.definitions.get(name)
    return definition is None or definition.needs_reset is not False


def _allows_patch(answer: Answer) -> bool | None:
    allowed = ",".join(answer.headers.getall("Allow", ()))
    return "PATCH" in allowed.upper() if allowed.strip() else None


def _has(view: BiosView, name: str, value: BiosValue, at_once: bool) -> bool:
    """Whether the BIOS has the value, or (unless it is wanted at once) waits to have it."""
    in_force = name in view.current and same_value(view.current[name], value)
    if at_once:
        return in_force
    return in_force or (name in view.queued and same_value(view.queued[name], value))


def _shown(values: Mapping[str, BiosValue], registry: AttributeRegistry) -> dict[str, BiosValue]:
    """Without the passwords among them."""
    return {
        name: value
        for name, value in values.items()
        if not is_secret(registry.definitions.get(name) or Definition(name), value)
    }


def _invalid(issues: list[Issue]) -> OperationError:
    return OperationError(
        ErrorCode.INVALID_ARGUMENT,
        "bios.setBios: " + "; ".join(str(issue) for issue in issues),
        details={"issues": [msgspec.to_builtins(issue) for issue in issues]},
    )


def _not_shown(
    missing: Mapping[str, BiosValue],
    view: BiosView,
    answer: Answer | NoAnswer,
    ending: Ending,
    words: list[BmcMessage],
) -> OperationError:
    """The error for values that no reading shows; it says what reads instead, or that the BIOS lost the attribute."""
    there = view.coming
    parts = [
        f"{name} reads {there[name]!r}" if name in there else f"{name} is not shown any more"
        for name in list(missing)[:10]
    ]
    gone = [name for name in missing if name not in there]
    hint = "; the BMC may need a restart (management.resetBmc) before it shows it again" if gone else ""
    error = unproven(answer, f"the BIOS settings {', '.join(missing)}", f"{', '.join(parts)}{hint}", words)
    error.details = {**error.details, "missing": sorted(missing), "task": ending.path}
    return error
