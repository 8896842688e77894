"""How a machine's ramdisk is started, and the tickets with which its own agents join."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from control_plane.api.shapes.common import Reference, Request, View
from control_plane.boot_settings import parse_port
from protocol.errors import Issue

__all__ = ["BootView", "CreateTicket", "GetBoot", "SetBoot", "TicketMade"]

Port = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[\x20-\x7e]*$(?!\n)")]
"""See `control_plane.boot_settings`."""


class GetBoot(Request, frozen=True, kw_only=True):
    node_id: Reference


class SetBoot(Request, frozen=True, kw_only=True):
    """In place of what was said before."""

    node_id: Reference
    ports: Annotated[list[Port], Meta(max_length=32)] = []
    """One line for each; none: DHCP on every port that has a link."""
    serial_console: Annotated[str, Meta(pattern=r"^tty[A-Za-z0-9]{1,12}(,[0-9]{1,7}[a-z0-9]{0,3})?$(?!\n)")] = (
        "ttyS0,115200"
    )

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> list[Issue]:
        issues = super().faults(raw)
        ports = raw.get("ports")
        for index, line in enumerate(ports if isinstance(ports, list) else []):
            if isinstance(line, str):
                try:
                    parse_port(line)
                except ValueError as error:
                    issues.append(Issue(f"ports[{index}]", str(error)))
        return issues


class BootView(View, frozen=True, kw_only=True):
    id: str
    """The node's."""
    name: str
    ports: list[str]
    serial_console: str


class CreateTicket(Request, frozen=True, kw_only=True):
    """A ticket for a set-up that is made by hand; else the site's agent asks for one by itself."""

    node_id: Reference
    role: Literal["ramdisk", "daemon"] = "ramdisk"


class TicketMade(View, frozen=True, kw_only=True):
    id: str
    """The node's."""
    name: str
    role: str
    join_token_id: str
    token: str
    """For `rackwright agent join URL TOKEN` on the machine. It is shown this once."""
    agent_url: str
    word: str
    """The whole ticket, for the kernel's command line: rackwright.ticket=WORD."""
    expires_at: datetime
