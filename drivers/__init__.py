"""What can be done to a machine, per concern; a library that a script can use on its own.

from drivers import Target, invoke
invoke(Target(address="https://192.0.2.10", username="admin", password=…), "power.setPower", {"action": "on"})
"""

from drivers.breaker import Breaker
from drivers.driver import Call, Connection, Driver, Environment, method_name, operations_of
from drivers.invoke import Drivers, Reply, Turn, ainvoke, invoke
from drivers.registry import INSTALLED, load
from drivers.rotation import GivenPassword, Rotation
from drivers.target import Target

__all__ = [
    "INSTALLED",
    "Breaker",
    "Call",
    "Connection",
    "Driver",
    "Drivers",
    "Environment",
    "GivenPassword",
    "Reply",
    "Rotation",
    "Target",
    "Turn",
    "ainvoke",
    "invoke",
    "load",
    "method_name",
    "operations_of",
]
