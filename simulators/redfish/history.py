"""What happened to a simulated machine, for tests to read: its resets, its boots, its deliveries."""

from collections.abc import Mapping

import msgspec


class Reset(msgspec.Struct, frozen=True):
    """One reset action that was carried out (not one that was refused). `at` is of the timeline's clock."""

    resource: str
    reset_type: str
    power_before: str
    at: float


class Boot(msgspec.Struct, frozen=True):
    """One start of the host: what it was told to boot from, and which images were inserted then."""

    system: str
    target: str
    mode: str | None
    enabled: str
    uefi_target: str | None
    http_uri: str | None
    media: Mapping[str, str]
    at: float


class MachineHistory:
    """Everything that was carried out, in its order."""

    def __init__(self) -> None:
        self.resets: list[Reset] = []
        self.boots: list[Boot] = []
        self.manager_resets: list[Reset] = []
