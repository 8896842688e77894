"""The planted password shows up nowhere but on the wire."""

import io
import logging
import pickle
import traceback
from collections.abc import Iterator

import pytest

from drivers import Target
from drivers.redfish.connection import RedfishConnection
from drivers.redfish.media_request import ImageAddress
from protocol.errors import OperationError
from simulators.redfish import Drop, FaultRule
from tests.drivers.redfish.harness import PASSWORD, RESET, SESSIONS, SYSTEM, bench, without_waiting

ECHO = {
    "error": {
        "code": f"X.{PASSWORD}",
        "@Message.ExtendedInfo": [{"MessageId": "X.1.0.Echo", "Message": f"got password {PASSWORD}"}],
    }
}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that any logger says, at every level."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)


def everything_said(error: BaseException) -> str:
    parts = ["".join(traceback.format_exception(error)), repr(error), str(error)]
    if isinstance(error, OperationError):
        parts += [str(error.details), str(error.bmc), str(error.as_failure())]
    return "\n".join(parts)


FAULTS = {
    "the login is refused with an echo": FaultRule(method="POST", path=SESSIONS, status=401, body=ECHO),
    "the login is answered with the request": FaultRule(method="POST", path=SESSIONS, status=400, body=ECHO),
    "the login has no answer": FaultRule(method="POST", path=SESSIONS, drop=Drop.BEFORE),
    "a read is refused with an echo": FaultRule(method="GET", path=SYSTEM, status=500, body=ECHO),
    "an order is refused with an echo": FaultRule(method="POST", path=RESET, status=403, body=ECHO),
    "an order has no answer": FaultRule(method="POST", path=RESET, drop=Drop.BEFORE),
    "basic is refused": FaultRule(path="/redfish/v1/S*", status=405, body=ECHO),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@without_waiting
async def test_no_error_and_no_log_holds_the_password(fault: FaultRule, log: io.StringIO) -> None:
    async with bench(faults=[fault]) as bmc:
        error = await bmc.fails("power.setPower", {"action": "reset"}, timeout=30)
        said = everything_said(error)
        assert PASSWORD not in said
        assert PASSWORD not in log.getvalue()


@without_waiting
async def test_no_object_shows_the_password() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        connection = bmc.drivers.connections.get(await bmc.drivers.driver_for(bmc.target), bmc.target)
        assert isinstance(connection, RedfishConnection)
        for thing in (bmc.target, connection, connection._session, connection._transport):
            assert PASSWORD not in repr(thing)


def test_an_image_s_password_is_in_no_repr() -> None:
    address = ImageAddress.parse(f"http://reader:{PASSWORD}@192.0.2.1/a.iso")
    assert address.password == PASSWORD
    assert PASSWORD not in repr(address)
    assert PASSWORD not in address.url


def test_a_target_cannot_be_pickled_with_its_password() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Target(address="http://127.0.0.1", username="admin", password=PASSWORD))
