"""A BIOS as one reading shows it: the values in force, those that wait for a reset, and how it takes new ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from drivers.redfish.bios_registry import AttributeRegistry, Definition, same_value
from drivers.redfish.document import Document, allowed_values, boolean, dig, text
from drivers.redfish.manners import Manners
from protocol.shapes.bios import BiosAttribute, BiosReading, BiosValue

__all__ = ["BiosView", "is_secret", "offered_apply_times"]

_COPY_SHARE = 0.9
_OWN_FORM = "current_value"
"""HPE Cray EX235a shows each attribute as an object of its own form, with this in it."""


@dataclass(frozen=True, slots=True)
class BiosView:
    """The BIOS and its settings object, as they were read together."""

    path: str
    document: Document
    settings_path: str | None = None
    settings: Document | None = None
    takes_patch: bool | None = None
    """Whether the BIOS itself may be patched, by its `Allow` header; None where there is none."""
    shows_pending: bool = False
    """The BIOS may show a value before the job that brings it has run (`Manners.bios_shows_pending`)."""
    current: Mapping[str, BiosValue] = field(default_factory=dict)
    queued: Mapping[str, BiosValue] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        path: str,
        document: Document,
        settings_path: str | None,
        settings: Document | None,
        *,
        takes_patch: bool | None,
        manners: Manners,
    ) -> "BiosView":
        return cls(
            path=path,
            document=document,
            settings_path=settings_path,
            settings=settings,
            takes_patch=takes_patch,
            shows_pending=manners.bios_shows_pending,
            current=_values(document),
            queued=_values(settings),
        )

    def with_settings(self, settings: Document) -> "BiosView":
        """The same BIOS with another reading of its settings object."""
        return replace(self, settings=settings, queued=_values(settings))

    @property
    def registry_name(self) -> str | None:
        return text(self.document, "AttributeRegistry")

    @property
    def has_own_form(self) -> bool:
        """Whether the attributes are written in a form that no standard knows."""
        return bool(_own_definitions(self.document))

    @property
    def defaults_pending(self) -> bool | None:
        return boolean(self.document, "ResetBiosToDefaultsPending")

    @property
    def pending(self) -> dict[str, BiosValue]:
        """What waits for a reset.

        Some settings objects hold only that, others a copy of all attributes (HPE, Lenovo, AMI): there it is what
        differs from the values in force.
        """
        sparse = not self._is_copy
        return {
            name: value
            for name, value in self.queued.items()
            if (sparse and self.shows_pending) or not same_value(self.current.get(name), value)
        }

    @property
    def coming(self) -> dict[str, BiosValue]:
        """The values after the next start, as far as it is known."""
        return {**self.current, **self.queued}

    def registry_or_own(self, registry: AttributeRegistry | None) -> AttributeRegistry:
        """The registry in this BIOS's words; without one, what the attributes tell of themselves."""
        if registry is None:
            return AttributeRegistry(None, _own_definitions(self.document))
        return registry.spoken(self.current)

    def reading(self, registry: AttributeRegistry | None, *, only_pending: bool) -> BiosReading:
        """All attributes in the BIOS's order; those of the settings object alone come last."""
        definitions = self.registry_or_own(registry).at(self.current)
        pending = self.pending
        names = dict.fromkeys([*self.current, *pending])
        return BiosReading(
            registry=self.registry_name or (registry.name if registry is not None else None),
            attributes=[
                _shown(definitions.get(name) or Definition(name), self.current.get(name), pending.get(name))
                for name in names
                if not only_pending or name in pending
            ],
            defaults_pending=self.defaults_pending,
        )

    @property
    def _is_copy(self) -> bool:
        shared = self.current.keys() & self.queued.keys()
        return bool(shared) and len(shared) >= _COPY_SHARE * len(self.current)


def offered_apply_times(view: BiosView) -> list[str]:
    """The apply times that the BMC lists for BIOS settings, in its own words; empty where it lists none.

    They stand in the BIOS's `@Redfish.Settings`, or as an annotation of the settings object (DSP0266, settings).
    """
    found: list[str] = []
    for document in (view.document, view.settings):
        listed = dig(document, "@Redfish.Settings", "SupportedApplyTimes")
        found += [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
        preferred = dig(document, "@Redfish.SettingsApplyTime")
        found += allowed_values(preferred, "ApplyTime")
        single = text(preferred, "ApplyTime")
        found += [single] if single is not None else []
    return list(dict.fromkeys(found))


def is_secret(definition: Definition, value: BiosValue) -> bool:
    """Whether a value must not be shown. Without a registry only the name tells, and a number of that name is a rule
    about passwords, not one of them."""
    return definition.is_secret and not (definition.kind is None and isinstance(value, int | float))


def _values(document: Document | None) -> dict[str, BiosValue]:
    attributes = dig(document, "Attributes")
    if not isinstance(attributes, dict):
        return {}
    # An attribute's name may be an annotation of another: those are no attributes.
    return {name: _value(value) for name, value in attributes.items() if "@" not in name}


def _value(found: object) -> BiosValue:
    if found is None or isinstance(found, str | int | float | bool):
        return found
    if isinstance(found, dict) and _OWN_FORM in found:
        return _value(found[_OWN_FORM])
    return msgspec.json.encode(found).decode()[:4096]


def _own_definitions(document: Document) -> dict[str, Definition]:
    attributes = dig(document, "Attributes")
    found: dict[str, Definition] = {}
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(value, dict) and _OWN_FORM in value:
            listed = value.get("AllowableValues")
            choices = tuple(item for item in listed if isinstance(item, str)) if isinstance(listed, list) else ()
            found[name] = Definition(
                name,
                kind="enumeration" if choices else None,
                choices=choices,
                default=_value(value.get("default_value")),
            )
    return found


def _shown(definition: Definition, value: BiosValue, pending: BiosValue) -> BiosAttribute:
    secret = is_secret(definition, value)
    return BiosAttribute(
        name=definition.name,
        value=None if secret else value,
        display_name=definition.label,
        help=definition.help,
        kind="password" if secret else definition.kind,
        minimum=definition.minimum,
        maximum=definition.maximum,
        step=definition.step or None,
        min_length=definition.shortest,
        max_length=definition.longest,
        choices=list(definition.choices),
        default=None if secret else definition.default,
        read_only=definition.read_only or definition.immutable,
        hidden=definition.hidden,
        note=definition.note,
        pending=None if secret else pending,
    )
