"""Which addresses hold a password."""

import pytest

from protocol.address_logins import login_faults


@pytest.mark.parametrize(
    "address", ["https://u:p@h/x", " http://u:@h", "smb://:p@h/share", "nfs+x://u:p@[::1]/x", "https://u:p@x@h/"]
)
def test_an_address_with_a_password_is_a_fault_at_its_place(address: str) -> None:
    (fault,) = login_faults({"a": [{"image": address}, "x"], "b": {"c": 1}}, "args")
    assert fault.path == "args.a[0].image"
    assert address.strip() not in str(fault)


@pytest.mark.parametrize(
    "text",
    [
        "https://h/x",
        "https://h:443/x@y:z",
        "https://h/?a=b:c@d",
        "ssh://user@h",
        "u:p@h",
        "see https://u:p@h",
        "",
        "://a:b@",
    ],
)
def test_others_are_none(text: str) -> None:
    assert login_faults([text], "args") == []


def test_what_is_nested_without_end_is_left_to_its_type() -> None:
    value: object = "https://u:p@h"
    for _ in range(1_000):
        value = [value]
    assert login_faults(value, "args") == []
