"""What the driver says that it can do, before any of it is loaded."""

from drivers import operations_of
from drivers.driver import method_name
from drivers.linux import DRIVER
from protocol.operations import OPERATIONS


def test_the_operations_that_are_told_are_those_that_can_be_done() -> None:
    concerns = DRIVER.concerns
    can_do = [name for name, one in OPERATIONS.items() if hasattr(concerns.get(one.concern), method_name(one))]
    assert operations_of(DRIVER) == can_do
    assert set(can_do) == DRIVER.operations
