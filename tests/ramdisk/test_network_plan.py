"""How ports are set: what the ticket asks, what DHCP servers say, and what follows from both."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.boot_ticket import TicketInterface, TicketNetwork
from ramdisk.leases import Lease, Route, parse_lease, parse_report
from ramdisk.network_plan import (
    Port,
    Settings,
    commands_for_lease,
    commands_for_static,
    make_plan,
    port_order,
    resolver_text,
)
from ramdisk.router_servers import servers_of

PORTS = [Port("eth0", "52:54:00:00:00:01", 0), Port("eth1", "52:54:00:00:00:02", 1)]


def plan(*interfaces: TicketInterface) -> tuple[list[Settings], list[str]]:
    made = make_plan(PORTS, TicketNetwork(interfaces=list(interfaces)))
    return list(made.settings), list(made.faults)


def test_without_settings_every_port_asks_by_dhcp() -> None:
    settings, faults = plan()
    assert [(one.interface, one.how) for one in settings] == [("eth0", "dhcp"), ("eth1", "dhcp")]
    assert faults == []


def test_a_port_of_the_ticket_is_found_by_its_address_and_the_others_are_left_alone() -> None:
    settings, faults = plan(
        TicketInterface(
            mac="52:54:00:00:00:02",
            addresses=["192.0.2.5/24", "2001:db8::5/64"],
            gateway="192.0.2.1",
            dns=["192.0.2.3"],
        )
    )
    assert faults == []
    assert settings == [
        Settings("eth1", PORTS[1], "static", None, ("192.0.2.5/24", "2001:db8::5/64"), "192.0.2.1", ("192.0.2.3",))
    ]
    assert commands_for_static(settings[0]) == [
        ("addr", "replace", "192.0.2.5/24", "dev", "eth1"),
        ("addr", "replace", "2001:db8::5/64", "dev", "eth1"),
        ("-4", "route", "replace", "default", "via", "192.0.2.1", "dev", "eth1", "metric", "110"),
    ]


def test_a_vlan_is_an_interface_of_its_own_with_a_name_that_the_kernel_takes() -> None:
    settings, _ = plan(TicketInterface(mac="52:54:00:00:00:01", vlan=1234))
    assert (settings[0].interface, settings[0].vlan, settings[0].how) == ("eth0.1234", 1234, "dhcp")
    long = make_plan(
        [Port("enp175s0f1np1d2", "52:54:00:00:00:01")],
        TicketNetwork(interfaces=[TicketInterface(mac="52:54:00:00:00:01", vlan=1234)]),
    )
    assert len(long.settings[0].interface) == 15


def test_a_replaced_card_is_told_of_and_the_machine_is_reached_by_dhcp() -> None:
    settings, faults = plan(TicketInterface(mac="52:54:00:00:00:99", addresses=["192.0.2.5/24"]))
    assert [one.how for one in settings] == ["dhcp", "dhcp"]
    assert "52:54:00:00:00:99" in faults[0]
    assert "by DHCP" in faults[1]


def test_every_fault_of_a_port_is_told() -> None:
    settings, faults = plan(
        TicketInterface(mac="52:54:00:00:00:01", addresses=["192.0.2.500/24"], gateway="gate", dns=["dns.example"])
    )
    assert len(faults) == 4
    assert [one.how for one in settings] == ["dhcp", "dhcp"]


def test_the_port_that_the_firmware_starts_from_is_first() -> None:
    names = {"eth10": "52:54:00:00:00:0a", "eth2": "52:54:00:00:00:02", "eth0": "52:54:00:00:00:01"}
    ports = port_order(names, ["52:54:00:00:00:0a"])
    assert [(port.name, port.order) for port in ports] == [("eth10", 0), ("eth0", 1), ("eth2", 2)]


REPORT = """event=bound
ip=10.0.2.15
subnet=255.255.255.0
mask=24
router=10.0.2.2
dns=10.0.2.3 10.0.2.4
domain=example.net
search=
mtu=
lease=86400
serverid=10.0.2.2
staticroutes=
message=
"""


def test_a_plain_lease() -> None:
    lease = parse_lease(parse_report(REPORT))
    assert lease == Lease(
        "10.0.2.15/24", ("10.0.2.2",), (), ("10.0.2.3", "10.0.2.4"), ("example.net",), None, 86400, "10.0.2.2"
    )
    assert commands_for_lease(Settings("eth0", PORTS[0], "dhcp"), lease) == [
        ("addr", "replace", "10.0.2.15/24", "dev", "eth0", "valid_lft", "86400", "preferred_lft", "86400"),
        ("-4", "route", "replace", "default", "via", "10.0.2.2", "dev", "eth0", "metric", "100"),
    ]


def test_classless_routes_stand_in_place_of_the_router() -> None:
    report = parse_report(REPORT) | {
        "staticroutes": "10.9.0.0/16 10.0.2.9 169.254.169.254/32 0.0.0.0 0.0.0.0/0 10.0.2.1",
        "mtu": "9000",
    }
    lease = parse_lease(report)
    assert lease.gateways == ("10.0.2.1",)
    assert lease.routes == (Route("10.9.0.0/16", "10.0.2.9"), Route("169.254.169.254/32", None))
    commands = commands_for_lease(Settings("eth1", PORTS[1], "dhcp"), lease)
    assert commands[0] == ("link", "set", "dev", "eth1", "mtu", "9000")
    assert ("route", "replace", "169.254.169.254/32", "dev", "eth1", "metric", "110") in commands


def test_a_gateway_outside_of_the_addresss_network_is_on_the_link() -> None:
    lease = parse_lease(parse_report(REPORT) | {"mask": "32"})
    assert commands_for_lease(Settings("eth0", PORTS[0], "dhcp"), lease)[-1][-3:] == ("onlink", "metric", "100")


def test_a_mask_may_come_as_a_subnet_alone() -> None:
    assert parse_lease({"ip": "10.0.0.5", "subnet": "255.255.240.0"}).address == "10.0.0.5/20"


@pytest.mark.parametrize("report", [{}, {"ip": "10.0.0.500"}, {"ip": "10.0.0.1", "mask": "99"}])
def test_a_lease_without_a_usable_address_is_none(report: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"(?i)address|netmask|permitted"):
        parse_lease(report)


@given(st.text(max_size=200))
def test_whatever_a_server_says_is_read_or_refused(text: str) -> None:
    report = parse_report(text)
    try:
        parse_lease(report | {"ip": "10.0.0.1", "dns": text, "staticroutes": text, "search": text, "mtu": text[:5]})
    except ValueError:
        return


def test_a_line_feed_in_a_servers_word_adds_nothing() -> None:
    assert parse_report("ip=10.0.0.1\ndomain=a\nip=6.6.6.6\n")["ip"] == "10.0.0.1"


def test_the_resolver_is_given_three_servers_and_no_more() -> None:
    text = resolver_text(["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "192.0.2.4"], ["a.example"])
    assert text == "search a.example\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 2001:db8::1\n"
    assert resolver_text([]) == ""


def advertised(*servers: bytes, lifetime: int = 600) -> bytes:
    option = bytes([25, 1 + 2 * len(servers), 0, 0]) + lifetime.to_bytes(4) + b"".join(servers)
    message = struct.pack("=BBHiBBHI", 10, 0, len(option), 2, 134, 0, 0, 0) + option
    return struct.pack("=IHHII", 16 + len(message), 68, 0, 0, 0) + message


def test_name_servers_of_routers_are_read_from_the_kernels_messages() -> None:
    one = bytes.fromhex("20010db8000000000000000000000053")
    assert servers_of(advertised(one)) == [("2001:db8::53", 600)]
    assert servers_of(advertised(one, lifetime=0) * 2) == [("2001:db8::53", 0)] * 2


@given(st.binary(max_size=120))
def test_whatever_the_kernel_writes_is_read_or_passed_over(data: bytes) -> None:
    servers_of(data)
    servers_of(advertised(data[:16].ljust(16, b"\0"))[: len(data)] + data)
