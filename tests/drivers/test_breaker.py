"""After one refused login no other one is tried until the credential changes."""

import pytest

from drivers import Breaker, Target
from protocol.errors import ErrorCode, OperationError


def bmc(password: str = "wrong", address: str = "https://192.0.2.10", **fields: str) -> Target:
    return Target(address=address, username="admin", password=password, **fields)  # type: ignore[arg-type]


def test_one_refused_login_blocks_the_next_one_with_the_same_credential() -> None:
    breaker = Breaker()
    breaker.check(bmc())
    breaker.refused(bmc(), "401 Unauthorized")
    with pytest.raises(OperationError) as caught:
        breaker.check(bmc())
    assert caught.value.code is ErrorCode.AUTH_BLOCKED
    assert "401 Unauthorized" in caught.value.message
    assert "wrong" not in str(caught.value)


def test_a_changed_credential_and_another_bmc_are_not_blocked() -> None:
    breaker = Breaker()
    breaker.refused(bmc(), "401")
    breaker.check(bmc(password="right"))
    breaker.check(bmc(address="https://192.0.2.11"))


def test_the_block_is_for_the_bmc_whatever_its_address_form() -> None:
    breaker = Breaker()
    breaker.refused(bmc(address="https://192.0.2.10"), "401")
    with pytest.raises(OperationError):
        breaker.check(bmc(address="https://192.0.2.10:443"))


def test_a_login_that_is_accepted_lifts_the_block() -> None:
    breaker = Breaker()
    breaker.refused(bmc(), "401")
    breaker.accepted(bmc())
    breaker.check(bmc())


def test_each_change_is_announced_and_nothing_else() -> None:
    changes: list[int] = []
    breaker = Breaker(on_change=lambda: changes.append(1))
    breaker.accepted(bmc())
    assert changes == []
    breaker.refused(bmc(), "401")
    breaker.accepted(bmc())
    assert changes == [1, 1]


def test_blocks_by_credential_version_are_taken_over_after_a_restart() -> None:
    before = Breaker()
    before.refused(bmc(credential_version="7"), "401")
    after = Breaker()
    after.blocked.update(before.blocked)
    with pytest.raises(OperationError):
        after.check(bmc(credential_version="7"))
    after.check(bmc(credential_version="8"))
