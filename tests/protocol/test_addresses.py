"""BMC addresses and how far their certificates are trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.addresses import Address, Scheme, TlsPolicy


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "shown"),
    [
        ("https://192.0.2.10", Scheme.HTTPS, "192.0.2.10", 443, "https://192.0.2.10"),
        ("HTTPS://BMC.Example:8443/", Scheme.HTTPS, "bmc.example", 8443, "https://bmc.example:8443"),
        ("http://[2001:db8::1]:8000", Scheme.HTTP, "2001:db8::1", 8000, "http://[2001:db8::1]:8000"),
        ("ipmi://bmc-1", Scheme.IPMI, "bmc-1", 623, "ipmi://bmc-1"),
        ("ssh://bmc:2222", Scheme.SSH, "bmc", 2222, "ssh://bmc:2222"),
        ("simulated://rack-1", Scheme.SIMULATED, "rack-1", 0, "simulated://rack-1"),
        (" 192.0.2.10 ", Scheme.ANY, "192.0.2.10", 0, "192.0.2.10"),
        ("192.0.2.10:8443", Scheme.ANY, "192.0.2.10", 8443, "192.0.2.10:8443"),
        ("2001:db8::1", Scheme.ANY, "2001:db8::1", 0, "[2001:db8::1]"),
    ],
)
def test_the_accepted_forms(text: str, scheme: Scheme, host: str, port: int, shown: str) -> None:
    address = Address.parse(text)
    assert (address.scheme, address.host, address.port) == (scheme, host, port)
    assert str(address) == shown
    assert Address.parse(shown) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("ftp://host", "not an address form"),
        ("https://", "no usable host"),
        ("https://host/redfish/v1", "path"),
        ("https://host?x=1", "path"),
        ("https://host:0", "port"),
        ("https://host:65536", "port"),
        ("https://host:https", "port"),
        ("https://-host", "no usable host"),
        ("https://ho st", "no usable host"),
        ("https://[2001:db8::g]", "host"),
        ("simulated://rack:1", "only a name"),
        ("https://user:secret@host", "on their own"),
    ],
)
def test_anything_else_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        Address.parse(text)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_and_what_is_parsed_can_be_shown_and_parsed_again(text: str) -> None:
    try:
        address = Address.parse(text)
    except ValueError:
        return
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("localhost", True),
        ("192.0.2.1", False),
        ("localhost.example", False),
    ],
)
def test_loopback_addresses_are_known(host: str, loopback: bool) -> None:
    assert Address.parse(f"http://{host}").is_loopback is loopback


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("verify", "verify"),
        ("none", "none"),
        ("first-use", "first-use"),
        ("ca:/etc/bmc-ca.pem", "ca:/etc/bmc-ca.pem"),
        ("sha256:" + "AB:" * 31 + "AB", "sha256:" + "ab" * 32),
    ],
)
def test_the_forms_of_trust(text: str, shown: str) -> None:
    assert str(TlsPolicy.parse(text)) == shown


@pytest.mark.parametrize(
    "text", ["", "trust", "sha256:", "sha256:xyz", "ca:", "ca:relative.pem", "none:x", "verify:"]
)
def test_other_forms_of_trust_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        TlsPolicy.parse(text)
