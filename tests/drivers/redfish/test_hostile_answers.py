"""Any property of any resource may be any JSON value: what comes of it is an answer or a typed error."""

import random
from typing import Any

import pytest

from protocol.errors import OperationError
from protocol.operations import OPERATIONS, Concern
from tests.drivers.redfish.harness import bench, without_waiting

NONSENSE: list[Any] = [
    *(None, "", "None", 0, -1, 1e308, True, [], {}, [None], [[]], ["x"], "x" * 5000, "/redfish/v1/\u0000", "\ud7ff"),
    *({"@odata.id": None}, {"@odata.id": "/redfish/v1"}, {"@odata.id": ""}, [{"@odata.id": 5}]),
    *({"Health": {}}, {"target": 7}),
]
OWN = (Concern.POWER, Concern.MANAGEMENT, Concern.BOOT, Concern.VIRTUAL_MEDIA)
READS = [operation.id for operation in OPERATIONS.values() if operation.concern in OWN and not operation.changes]
CHANGES: dict[str, dict[str, Any]] = {
    "power.setPower": {"action": "off"},
    "boot.setBootDevice": {"device": "pxe"},
    "boot.setSecureBoot": {"enabled": True},
    "virtual-media.insertMedia": {"image": "http://192.0.2.1/a.iso"},
    "virtual-media.ejectMedia": {},
    "management.setIndicator": {"state": "on"},
    "management.clearEventLog": {},
}


def spoil(value: Any, chance: random.Random, share: float) -> Any:
    """The document with some of its values replaced by nonsense, at any depth."""
    if isinstance(value, dict):
        return {
            key: chance.choice(NONSENSE) if chance.random() < share else spoil(inner, chance, share)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [chance.choice(NONSENSE) if chance.random() < share else spoil(item, chance, share) for item in value]
    return value


@pytest.mark.parametrize("share", [0.03, 0.15, 0.5])
@pytest.mark.parametrize("seed", range(8))
@without_waiting
async def test_nonsense_anywhere_never_breaks_the_driver(seed: int, share: float) -> None:
    chance = random.Random(seed)
    ends: list[str] = []
    async with bench() as bmc:
        for resource in list(bmc.bmc.service.store):
            if resource.document is not None and "Session" not in resource.path and resource.path != "/redfish/v1":
                spoiled = spoil(resource.document, chance, share)
                spoiled["@odata.id"] = resource.path
                bmc.bmc.state.put(resource.path, spoiled)
        for operation, arguments in [*((read, {}) for read in READS), *CHANGES.items()]:
            try:
                await bmc(operation, arguments, timeout=400)
            except OperationError as error:
                ends.append(f"{operation}: {error}")
        assert [end for end in ends if "failed in the redfish driver" in end] == []
