"""Our Redfish server after the driver has changed all that it can: what came of it is still true to the schemas.

Settings objects that wait, tasks, volumes, subscriptions, certificates, inserted images: DMTF's service validator,
which nobody here wrote, judges them.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from drivers import Drivers, Target
from simulators.redfish import RedfishServerThread, ServiceOptions
from tests.drivers.redfish.every_operation import CHANGES, perform
from tests.drivers.redfish.harness import Bench
from tests.drivers.redfish.test_every_request import NOT_HERE
from tests.simulators.conftest import PASSWORD, USER
from tests.simulators.test_redfish_conformance import faults_of_tree

LEFT_AS_IT_IS = NOT_HERE | {
    # The validator logs in with the password.
    "config.rotatePassword",
    # What they take away shall be judged.
    "management.clearEventLog",
    "raid.applyRaid",
    "raid.clearRaid",
    "raid.deleteVolume",
    "virtual-media.ejectMedia",
}
USED = [operation for operation in CHANGES if operation not in LEFT_AS_IT_IS]


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_what_the_changes_leave_is_true_to_the_schemas(tmp_path: Path, shared: Path) -> None:
    image = tmp_path / "bmc-2.14.0.bin"
    image.write_bytes(b"firmware")
    options = ServiceOptions(volume_changes_by_task=True)
    with RedfishServerThread(tls=True, options=options) as thread:
        target = Target(address=thread.url, username=USER, password=PASSWORD, verify=False)

        async def use() -> None:
            async with Drivers() as drivers:
                bmc = Bench(thread.server, drivers, target)
                for operation in USED:
                    await perform(operation, bmc, image=image)
                destination: dict[str, Any] = {"url": "https://listener.example/events"}
                await bmc("config.setConfig", {"eventDestinations": [destination]})

        asyncio.run(use())
        assert len(thread.journal.entries("POST")) >= 10
        assert faults_of_tree(thread, tmp_path, shared) == []
