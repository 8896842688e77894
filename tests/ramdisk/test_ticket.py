"""Where a boot's ticket is found: three carriers, in their order, whatever else is in the machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

from protocol.boot_ticket import (
    AREA_NAME,
    TICKET_NAME,
    TICKET_WORD,
    BootTicket,
    TicketInterface,
    TicketNetwork,
    encode_area,
    encode_word,
    to_json,
)
from protocol.join_token import JoinToken
from protocol.secret import Secret
from ramdisk.ticket import Carriers, word_of
from tests.drivers.linux.machine import Machine

MIB = 1 << 20


def ticket(node: str) -> BootTicket:
    return BootTicket(
        node_id=node,
        control_plane="https://control.example:8443",
        token=Secret(JoinToken.new("ab" * 32).text()),
        network=TicketNetwork(interfaces=[TicketInterface(mac="52:54:00:00:00:01", vlan=7)]),
    )


def medium(folder: Path, area: bytes, label: str = "RACKWRIGHT") -> bytes:
    """A boot medium made by a program of its own."""
    if shutil.which("xorriso") is None:
        pytest.skip("xorriso is not installed")
    tree = folder / "tree" / "rackwright"
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "ticket.area").write_bytes(area)
    iso = folder / "medium.iso"
    words = ["xorriso", "-as", "mkisofs", "-quiet", "-V", label, "-R", "-J", "-o", str(iso), str(folder / "tree")]
    subprocess.run(words, check=True, capture_output=True)
    return iso.read_bytes()


def insert(machine: Machine, name: str, data: bytes, **attributes: str) -> None:
    size = -(-max(len(data), MIB) // 4096) * 4096
    machine.add_disk(name, size, **attributes).write_bytes(data.ljust(size, b"\0"))


@pytest.fixture
def carriers(machine: Machine, tmp_path: Path) -> Carriers:
    (machine.host.proc / "cmdline").write_text("console=ttyS0,115200 panic=30\n")
    return Carriers(machine.host, tmp_path / "root")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def in_the_ramdisk(folder: Path, data: bytes, name: str = TICKET_NAME) -> Path:
    file = folder / "root" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def test_the_ramdisks_own_file_comes_before_the_medium_and_the_medium_before_the_command_line(
    machine: Machine, carriers: Carriers, tmp_path: Path
) -> None:
    (machine.host.proc / "cmdline").write_text(f"quiet {TICKET_WORD}={encode_word(ticket('node_cmdline'))}\n")
    found = carriers.look().found
    assert found is not None
    assert (found.ticket.node_id, found.exposed) == ("node_cmdline", True)
    insert(machine, "sr0", medium(tmp_path, encode_area(ticket("node_medium"))))
    found = carriers.look().found
    assert found is not None
    assert (found.ticket.node_id, found.carrier, found.exposed) == ("node_medium", "on the boot medium sr0", False)
    in_the_ramdisk(tmp_path, to_json(ticket("node_file")))
    found = carriers.look().found
    assert found is not None
    assert found.ticket.node_id == "node_file"


def test_the_area_that_the_boot_loader_handed_over_is_read_where_there_is_no_medium(
    carriers: Carriers, tmp_path: Path
) -> None:
    in_the_ramdisk(tmp_path, encode_area(ticket("node_http")), AREA_NAME)
    found = carriers.look().found
    assert found is not None
    assert (found.ticket.node_id, found.carrier) == ("node_http", "in the initial ramdisk")


def test_a_refused_ticket_in_memory_does_not_hide_a_fresh_one_on_the_medium(
    machine: Machine, carriers: Carriers, tmp_path: Path
) -> None:
    old, new = ticket("node_1"), ticket("node_1")
    in_the_ramdisk(tmp_path, encode_area(old), AREA_NAME)
    insert(machine, "sr0", medium(tmp_path, encode_area(new)))
    refused = {old.token.reveal()}
    found = carriers.look(refused).found
    assert found is not None
    assert found.ticket == new
    look = carriers.look(refused | {new.token.reveal()})
    assert (look.found, look.refused) == (None, True)


def test_a_medium_is_found_by_its_label_among_other_disks_and_empty_drives(
    machine: Machine, carriers: Carriers, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    insert(machine, "sr0", medium(other, encode_area(ticket("node_other")), label="DEBIAN"))
    insert(machine, "sda", b"")
    machine.add_disk("sr1", 0)
    insert(machine, "sdb", medium(tmp_path, encode_area(ticket("node_stick"))), removable="1", ro="1")
    found = carriers.look().found
    assert found is not None
    assert (found.ticket.node_id, found.carrier) == ("node_stick", "on the boot medium sdb")


@pytest.mark.parametrize(
    "attributes", [{}, {"ro": "1"}, {"removable": "1"}], ids=["a disk", "a protected disk", "a stick"]
)
def test_a_ticket_that_the_machine_itself_could_have_written_is_not_read(
    machine: Machine, carriers: Carriers, tmp_path: Path, attributes: dict[str, str]
) -> None:
    insert(machine, "sda", medium(tmp_path, encode_area(ticket("node_planted"))), **attributes)
    assert carriers.look() == (None, [], False)


@pytest.mark.parametrize("folder_bytes", [20, 1 << 31])
def test_a_damaged_disk_that_has_the_label_does_not_keep_the_machine_from_joining(
    machine: Machine, carriers: Carriers, tmp_path: Path, folder_bytes: int
) -> None:
    damaged = bytearray(medium(tmp_path, encode_area(ticket("node_damaged"))))
    # The size of the root folder, in the volume's descriptor.
    damaged[0x8000 + 156 + 10 : 0x8000 + 156 + 14] = folder_bytes.to_bytes(4, "little")
    insert(machine, "sr0", bytes(damaged))
    insert(machine, "sr1", medium(tmp_path, encode_area(ticket("node_medium"))))
    found = carriers.look().found
    assert found is not None
    assert found.ticket.node_id == "node_medium"


@pytest.mark.parametrize(
    ("area", "said"),
    [
        (encode_area(None), "holds no ticket: it was not made for this machine"),
        (encode_area(ticket("n")).replace(b"nodeId", b"nodeXd"), "its checksum is another one"),
        (b"x" * 65_536, "this is no ticket area"),
    ],
)
def test_a_medium_without_a_usable_ticket_says_why(
    machine: Machine, carriers: Carriers, tmp_path: Path, area: bytes, said: str
) -> None:
    insert(machine, "sr0", medium(tmp_path, area))
    look = carriers.look()
    assert look.found is None
    assert said in look.faults[0]
    assert "sr0" in look.faults[0]


def test_a_damaged_file_and_word_are_told_of_without_repeating_them(
    machine: Machine, carriers: Carriers, tmp_path: Path
) -> None:
    in_the_ramdisk(tmp_path, b'{"token": "s3cret"')
    (machine.host.proc / "cmdline").write_text(f"{TICKET_WORD}=s3cret!\n")
    look = carriers.look()
    assert look.found is None
    assert len(look.faults) == 2
    assert "s3cret" not in str(look)


def test_a_fresh_ticket_on_the_same_medium_is_seen(machine: Machine, carriers: Carriers, tmp_path: Path) -> None:
    insert(machine, "sr0", medium(tmp_path, encode_area(None)))
    assert carriers.look().found is None
    (machine.host.dev / "sr0").write_bytes(medium(tmp_path, encode_area(ticket("node_late"))))
    found = carriers.look().found
    assert found is not None
    assert found.ticket.node_id == "node_late"


def test_a_used_ticket_is_removed_from_memory(carriers: Carriers, tmp_path: Path) -> None:
    file = in_the_ramdisk(tmp_path, to_json(ticket("node_1")))
    in_the_ramdisk(tmp_path, encode_area(ticket("node_1")), AREA_NAME)
    carriers.wipe()
    assert not file.parent.exists()
    carriers.wipe()


def test_no_text_form_of_what_was_found_shows_the_token(carriers: Carriers, tmp_path: Path) -> None:
    one = ticket("node_1")
    in_the_ramdisk(tmp_path, to_json(one))
    assert one.token.reveal() not in repr(carriers.look())


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a=1 rackwright.ticket=abc quiet", "abc"),
        ("rackwright.ticket=abc rackwright.ticket=def", "def"),
        ('rackwright.ticket="abc"', "abc"),
        ("rackwright.ticket=", None),
        ("rackwright.ticketx=abc", None),
        ("it's rackwright.ticket=abc", "abc"),
        ("", None),
    ],
)
def test_the_word_of_a_command_line(line: str, value: str | None) -> None:
    assert word_of(line, TICKET_WORD) == value
