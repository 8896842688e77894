"""Labels from inventories: what a profile's `when` can ask for after a machine was inspected."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.engine.when import expression_faults, holds
from control_plane.inventory_labels import labels_of_inventory, with_found
from protocol.shapes.inspect import (
    Drive,
    Inventory,
    MemoryModule,
    NetworkInterface,
    PciDevice,
    Processor,
    SystemIdentity,
    TrustedModule,
)

GIB = 1 << 30
SERVER = Inventory(
    system=SystemIdentity(vendor="Dell Inc.", model="PowerEdge R750", serial="ABC123"),
    processors=[
        Processor(socket="CPU.1", vendor="GenuineIntel", model="Intel(R) Xeon(R) Gold 6354 CPU @ 3.00GHz", cores=18),
        Processor(socket="CPU.2", vendor="GenuineIntel", model="Intel(R) Xeon(R) Gold 6354 CPU @ 3.00GHz", cores=18),
        Processor(socket="Slot 2", kind="gpu", vendor="NVIDIA Corporation", model="NVIDIA H100 PCIe"),
    ],
    memory=[MemoryModule(slot="A1", size_mib=32768), MemoryModule(slot="B1", size_mib=32768)],
    drives=[
        Drive(name="sda", size_bytes=480 * GIB, media="ssd", protocol="SATA"),
        Drive(name="nvme0n1", size_bytes=3840 * GIB, media="ssd", protocol="NVMe"),
        Drive(name="sdb", size_bytes=8000 * GIB, media="hdd", protocol="SAS"),
    ],
    nics=[NetworkInterface(name="eno1", link="up", speed_mbps=25000), NetworkInterface(name="eno2", link="down")],
    pci=[PciDevice(name="PERC H755 Front")],
    trusted_modules=[TrustedModule(kind="TPM2_0")],
)


def test_a_server_in_labels() -> None:
    assert labels_of_inventory(SERVER) == {
        "system.vendor": "Dell",
        "system.model": "PowerEdge R750",
        "system.serial": "ABC123",
        "cpu.vendor": "Intel",
        "cpu.model": "Xeon Gold 6354",
        "cpu.count": "2",
        "cpu.cores": "36",
        "memory.gib": "64",
        "disk.count": "3",
        "disk.ssd": "2",
        "disk.hdd": "1",
        "disk.nvme": "1",
        "disk.smallest.gib": "480",
        "disk.largest.gib": "8000",
        "disk.total.gib": "12320",
        "nic.count": "2",
        "nic.up": "1",
        "nic.gbps": "25",
        "gpu.count": "1",
        "gpu.vendor": "NVIDIA",
        "gpu.model": "H100",
        "mig.capable": "true",
        "raid.hardware": "true",
        "tpm": "TPM2_0",
    }


def test_the_specifications_own_expressions_hold_for_what_was_found() -> None:
    labels = labels_of_inventory(SERVER)
    assert holds("raid.hardware && gpu.model=H100", labels)
    assert not holds("!mig.capable", labels)
    plain = labels_of_inventory(Inventory(system=SystemIdentity()))
    assert plain == {}
    assert holds("!gpu.count && !raid.hardware && !mig.capable", plain)


@pytest.mark.parametrize(
    ("model", "socket", "short"),
    [
        ("NVIDIA H100 PCIe", "Slot 2", "H100"),
        ("H100 80GB HBM3", "GPU_SXM_1", "H100"),
        ("GH100 [H100 SXM5 80GB]", "0000:1b:00.0", "H100"),
        ("NVIDIA GH200 96GB HBM3", "GPU", "GH200"),
        ("900-21010-0320-030", "NVIDIA H100 NVL", "H100"),
        ("GA100 [A100 PCIe 80GB]", "0000:41:00.0", "A100"),
        ("AD102GL [L40S]", "0000:41:00.0", "L40S"),
        ("TU104GL [Tesla T4]", "0000:41:00.0", "T4"),
        ("AD102GL [RTX 6000 Ada Generation]", "0000:41:00.0", "RTX 6000 Ada Generation"),
        ("Aqua Vanjaram [Instinct MI300X]", "0000:41:00.0", "MI300X"),
        ("AMD INSTINCT MI200 (MCM) OAM LC", "GPU 0", "MI200"),
        (None, "GPU 3", None),
    ],
)
def test_an_accelerator_has_its_products_short_name_however_it_is_told(
    model: str | None, socket: str, short: str | None
) -> None:
    """The names are those of real BMCs and of the list of PCI ids."""
    inventory = Inventory(system=SystemIdentity(), processors=[Processor(socket=socket, kind="gpu", model=model)])
    assert labels_of_inventory(inventory).get("gpu.model") == short


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("AMD EPYC 7763 64-Core Processor                ", "EPYC 7763"),
        ("Intel(R) Xeon(R) Platinum 8362 CPU @ 2.80GHz", "Xeon Platinum 8362"),
        ("Intel(R) Xeon(R) Gold 5218 2.3GHz", "Xeon Gold 5218"),
        ("Neoverse-N1", "Neoverse-N1"),
    ],
)
def test_a_processor_is_named_without_marks_and_clock(model: str, short: str) -> None:
    inventory = Inventory(system=SystemIdentity(), processors=[Processor(socket="1", model=model)])
    assert labels_of_inventory(inventory)["cpu.model"] == short


def test_what_a_poorer_inventory_cannot_tell_is_kept_and_what_it_tells_is_replaced() -> None:
    known = labels_of_inventory(SERVER)
    by_ipmi = Inventory(
        system=SystemIdentity(vendor="Dell Inc.", serial="NEW"),
        incomplete=["processors", "memory", "drives", "nics", "pci", "trusted_modules"],
    )
    after = with_found(known, by_ipmi)
    assert (after["system.serial"], after["disk.count"], after["gpu.model"]) == ("NEW", "3", "H100")
    assert "system.model" not in after


def test_a_part_that_was_taken_out_loses_its_labels() -> None:
    known = labels_of_inventory(SERVER)
    bare = Inventory(system=SystemIdentity(vendor="Dell Inc."), processors=[Processor(socket="CPU.1")])
    after = with_found(known, bare)
    assert not any(name.startswith(("gpu.", "mig.", "raid.", "disk.")) for name in after)


_words = st.none() | st.text(max_size=300)


@given(
    st.builds(
        Inventory,
        system=st.builds(
            SystemIdentity, vendor=_words, model=_words, serial=_words, memory_mib=st.none() | st.integers(0)
        ),
        processors=st.lists(
            st.builds(Processor, socket=st.text(), kind=st.sampled_from(["cpu", "gpu"]), vendor=_words, model=_words),
            max_size=3,
        ),
        drives=st.lists(st.builds(Drive, name=st.text(), size_bytes=st.none() | st.integers(0)), max_size=3),
        trusted_modules=st.lists(st.builds(TrustedModule, kind=_words), max_size=1),
    )
)
def test_whatever_firmware_writes_every_label_can_be_asked_for(inventory: Any) -> None:
    for name, value in labels_of_inventory(inventory).items():
        assert value
        assert len(value) <= 255
        assert expression_faults(f"{name}={value}", "when") == []
        assert holds(f"{name}={value}", {name: value})
