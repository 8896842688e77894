"""A target is checked when it is made, and never gives its password away."""

import pickle

import pytest

from drivers import Target
from protocol.errors import ErrorCode, OperationError

PIN = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("address", "driver"),
    [
        ("https://192.0.2.10", "redfish"),
        ("http://127.0.0.1:8000", "redfish"),
        ("ipmi://bmc.example", "ipmi"),
        ("ssh://bmc.example:2222", "ssh"),
        ("simulated://rack-1", "simulated"),
        ("192.0.2.10", None),
        ("2001:db8::1", None),
    ],
)
def test_the_address_decides_the_driver(address: str, driver: str | None) -> None:
    assert Target(address=address).driver_name == driver


def test_a_bare_host_takes_the_driver_that_is_named() -> None:
    assert Target(address="192.0.2.10", driver="ipmi").driver_name == "ipmi"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"address": ""}, "empty"),
        ({"address": "ftp://192.0.2.10"}, "not an address form"),
        ({"address": "https://192.0.2.10/redfish"}, "path"),
        ({"address": "https://192.0.2.10:70000"}, "port"),
        ({"address": "https://192.0.2.10", "driver": "ipmi"}, "cannot speak"),
        ({"address": "https://192.0.2.10", "driver": "simulated"}, "cannot speak"),
        ({"address": "https://192.0.2.10", "driver": "snmp"}, "no driver 'snmp'"),
        ({"address": "https://192.0.2.10", "verify": "maybe"}, "trust form"),
        ({"address": "https://192.0.2.10", "verify": "sha256:12"}, "64 hexadecimal"),
        ({"address": "https://192.0.2.10", "verify": "ca:relative.pem"}, "absolute path"),
        ({"address": "http://192.0.2.10"}, "--allow-http"),
    ],
)
def test_an_unusable_target_is_refused_with_the_reason(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(OperationError) as caught:
        Target(**fields)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert reason in caught.value.message


@pytest.mark.parametrize(
    "address", ["https://root:hunter2@192.0.2.10", "root:hunter2@192.0.2.10", "ipmi:hunter2@x/y://"]
)
def test_a_password_in_the_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(OperationError) as caught:
        Target(address=address)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "fields", [{"address": "http://127.0.0.1"}, {"address": "http://[::1]:80"}, {"address": "http://localhost"}]
)
def test_plain_http_to_a_loopback_address_needs_no_consent(fields: dict[str, str]) -> None:
    Target(**fields)  # type: ignore[arg-type]


def test_plain_http_elsewhere_needs_consent() -> None:
    assert Target(address="http://192.0.2.10", allow_http=True).endpoint == "192.0.2.10:80"
    assert Target(address="http://192.0.2.10", verify="none").endpoint == "192.0.2.10:80"


def test_the_password_is_in_no_text_of_the_target() -> None:
    target = Target(address="https://192.0.2.10", username="admin", password="hunter2")
    assert "hunter2" not in f"{target!r} {target} {target.secret} {vars(target)}"
    assert target.secret.reveal() == "hunter2"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(target)


def test_the_credential_key_changes_with_the_credential_and_hides_it() -> None:
    def key(**fields: str) -> str:
        return Target(address="https://192.0.2.10", **fields).credential_key  # type: ignore[arg-type]

    assert key(username="a", password="x") == key(username="a", password="x")
    assert (
        len({key(username="a", password="x"), key(username="a", password="y"), key(username="b", password="x")}) == 3
    )
    assert "hunter2" not in key(username="a", password="hunter2")


def test_a_credential_version_stands_for_the_password_over_restarts() -> None:
    target = Target(address="https://192.0.2.10", username="a", password="x", credential_version="7")
    assert target.credential_key == "a\x007"


def test_the_lane_is_the_endpoint_unless_it_is_named() -> None:
    assert Target(address="https://192.0.2.10").lane_key == "192.0.2.10:443"
    assert Target(address="https://192.0.2.10", lane="node-1").lane_key == "node-1"


@pytest.mark.parametrize(
    ("verify", "text"), [(True, "verify"), (False, "none"), (PIN, PIN), ("ca:/etc/ca.pem", "ca:/etc/ca.pem")]
)
def test_trust_is_given_as_a_switch_or_as_a_form(verify: bool | str, text: str) -> None:
    assert str(Target(address="https://192.0.2.10", verify=verify).tls) == text
