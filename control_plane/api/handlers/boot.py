"""How a machine's ramdisk is started, and the tickets with which its own agents join."""

from control_plane.api.call import Call
from control_plane.api.shapes.boot import BootView, CreateTicket, GetBoot, SetBoot, TicketMade
from control_plane.api.shapes.common import instant
from control_plane.boot_settings import BootSettings, boot_settings, parse_port, set_boot_settings, text_of_port
from control_plane.nodes import find_node
from control_plane.records import NodeRow
from control_plane.store import Transaction
from control_plane.tickets import Issuer, mint
from protocol.boot_ticket import TicketNetwork, encode_word
from protocol.join_token import JoinToken

__all__ = ["create_ticket", "get", "set_"]


def get(tx: Transaction, call: Call, request: GetBoot) -> BootView:
    return _view(tx, find_node(tx, call.tenant, request.node_id))


def set_(tx: Transaction, call: Call, request: SetBoot) -> BootView:
    node = find_node(tx, call.tenant, request.node_id, lock=True)
    network = TicketNetwork(interfaces=[parse_port(line) for line in request.ports])
    set_boot_settings(tx, node.id, BootSettings(network, request.serial_console))
    return _view(tx, node)


def create_ticket(tx: Transaction, call: Call, request: CreateTicket) -> TicketMade:
    node = find_node(tx, call.tenant, request.node_id, keep=True)
    issuer = Issuer(call.services.ca_sha256, call.services.agent_url)
    ticket = mint(tx, node, request.role, issuer, by=call.principal.id)
    return TicketMade(
        id=node.id,
        name=node.name,
        role=request.role,
        join_token_id=JoinToken.parse(ticket.token.reveal()).id,
        token=ticket.token.reveal(),
        agent_url=ticket.control_plane,
        word=encode_word(ticket),
        expires_at=instant(ticket.expires_at),
    )


def _view(tx: Transaction, node: NodeRow) -> BootView:
    settings = boot_settings(tx, node.id)
    return BootView(
        id=node.id,
        name=node.name,
        ports=[text_of_port(port) for port in settings.network.interfaces],
        serial_console=settings.serial_console,
    )
