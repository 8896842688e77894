"""One address for a node, and the way each driver takes to the same BMC."""

import pytest

from control_plane.nodes import target_by
from protocol.commands import TargetRef


@pytest.mark.parametrize(
    ("address", "driver", "reached_at"),
    [
        ("https://192.0.2.1", "ipmi", "ipmi://192.0.2.1"),
        ("https://192.0.2.1:8443", "redfish", "https://192.0.2.1:8443"),
        ("ipmi://192.0.2.1:6230", "ipmi", "ipmi://192.0.2.1:6230"),
        ("ipmi://192.0.2.1:6230", "redfish", "https://192.0.2.1"),
        ("ipmi://[2001:db8::1]:6230", "redfish", "https://[2001:db8::1]"),
        ("ssh://192.0.2.1:2200", "ssh", "ssh://192.0.2.1:2200"),
        ("ssh://192.0.2.1:2200", "redfish", "https://192.0.2.1"),
        ("ssh://192.0.2.1:2200", "ipmi", "ipmi://192.0.2.1"),
        ("http://127.0.0.1:8000", "redfish", "http://127.0.0.1:8000"),
        ("192.0.2.1", "redfish", "192.0.2.1"),
        ("simulated://one", "redfish", "simulated://one"),
        ("ipmi://192.0.2.1:6230", "auto", "ipmi://192.0.2.1:6230"),
    ],
)
def test_the_port_is_the_address_own_for_its_driver_and_the_usual_one_for_another(
    address: str, driver: str, reached_at: str
) -> None:
    assert target_by(driver, TargetRef(address, "bmc", "first-use")) == TargetRef(reached_at, "bmc", "first-use")


def test_a_certificates_pin_is_none_of_an_ssh_host_key() -> None:
    pinned = TargetRef("https://192.0.2.1", "bmc", f"sha256:{'ab' * 32}")
    assert target_by("ssh", pinned).tls == "first-use"
    assert target_by("ipmi", pinned).tls == pinned.tls
