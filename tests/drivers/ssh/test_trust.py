"""Host keys are trusted as certificates are: pinned, taken on first use, known to this host, or not looked at."""

from pathlib import Path

import pytest

from drivers import Target
from drivers.ssh.trust import check_host_key, fingerprint, known_hosts_files
from protocol.errors import ErrorCode, OperationError

KEY, OTHER = b"a host key", b"another one"
PLACE = "192.0.2.1:22"


def check(verify: str, key: bytes = KEY, *, known: bool = False, pins: dict[str, str] | None = None) -> str:
    target = Target(address="ssh://192.0.2.1", verify=verify)
    return check_host_key(target, PLACE, key, known=known, pins={} if pins is None else pins)


def refused(verify: str, key: bytes = KEY, **more: object) -> ErrorCode:
    with pytest.raises(OperationError) as caught:
        check(verify, key, **more)  # type: ignore[arg-type]
    return caught.value.code


def test_a_pinned_key_is_the_only_good_one() -> None:
    assert check(f"sha256:{fingerprint(KEY)}") == fingerprint(KEY)
    assert refused(f"sha256:{fingerprint(KEY)}", OTHER) is ErrorCode.TLS_UNTRUSTED


def test_the_first_key_is_pinned_and_another_one_refused() -> None:
    pins: dict[str, str] = {}
    check("first-use", pins=pins)
    assert pins == {PLACE: fingerprint(KEY)}
    check("first-use", pins=pins)
    assert refused("first-use", OTHER, pins=pins) is ErrorCode.TLS_UNTRUSTED
    assert pins == {PLACE: fingerprint(KEY)}


def test_verify_means_the_known_hosts_of_this_host() -> None:
    assert check("verify", known=True)
    assert refused("verify") is ErrorCode.TLS_UNTRUSTED


def test_none_takes_any_key_and_a_ca_is_no_answer() -> None:
    assert check("none", OTHER)
    assert refused("ca:/etc/ca.pem") is ErrorCode.INVALID_ARGUMENT


def test_the_known_hosts_files_are_those_of_openssh(tmp_path: Path) -> None:
    assert known_hosts_files(tmp_path) == [Path("/etc/ssh/ssh_known_hosts"), tmp_path / ".ssh" / "known_hosts"]
