"""`rackwright simulate machine`: a virtual machine with a BMC, until a signal ends it."""

import asyncio
import logging
import re
import signal
import uuid
from pathlib import Path
from typing import Any

import click

from simulators.login import read_password
from simulators.machine.bmc_memory import BmcMemoryError
from simulators.machine.firmware import find_uefi
from simulators.machine.image import ImageFault
from simulators.machine.machine import VirtualMachine
from simulators.machine.process import MachineFault, find_programs
from simulators.machine.spec import (
    MOST_DISKS,
    Disk,
    DiskBus,
    Firmware,
    Forward,
    Identity,
    MachineSpec,
    Nic,
    NicModel,
    SpecError,
)
from simulators.machine.state_folder import StateError, StateFolder, open_disk

DEFAULT_FOLDER = Path("~/.local/state/rackwright/machine")
_SIZE = re.compile(r"(\d+)([KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FORWARD = re.compile(r"(\d{1,5}):(\d{1,5})")


def _bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no size: write it as 8G or 512M")
    return int(found[1]) * _UNITS[found[2].upper()] // 512 * 512


def _mebibytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    return _bytes(context, parameter, value if not value.isdecimal() else f"{value}M") >> 20


def _forwards(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Forward, ...]:
    found = [_FORWARD.fullmatch(value) for value in values]
    wrong = [value for value, match in zip(values, found, strict=True) if match is None]
    if wrong:
        raise click.BadParameter(f"{', '.join(wrong)}: write it as 2222:22 (host's port, machine's port)")
    return tuple(Forward(int(match[1]), int(match[2])) for match in found if match is not None)


@click.command()
@click.option(
    "--disk",
    "disks",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="File of a disk, raw or qcow2, made where it is missing; up to four.  [default: disk.raw in --state]",
)
@click.option("--disk-size", default="8G", show_default=True, callback=_bytes, help="Size of a disk that is made.")
@click.option("--disk-bus", type=click.Choice([bus.value for bus in DiskBus]), default="virtio", show_default=True)
@click.option(
    "--iso",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Image in the virtual drive at the start.",
)
@click.option("--firmware", type=click.Choice([kind.value for kind in Firmware]), default="uefi", show_default=True)
@click.option("--memory", default="1536", show_default=True, callback=_mebibytes, help="Memory, in MiB or as 2G.")
@click.option("--cpus", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--nics", type=click.IntRange(0, 4), default=1, show_default=True, help="How many network ports.")
@click.option(
    "--nic-model", type=click.Choice([model.value for model in NicModel]), default="virtio", show_default=True
)
@click.option(
    "--forward", "forwards", multiple=True, callback=_forwards, help="HOST:MACHINE, a port on loopback: 2222:22."
)
@click.option(
    "--tftp",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder that the network serves by TFTP.",
)
@click.option("--boot-file", help="File or URL that the network's DHCP server names, for PXE and iPXE.")
@click.option("--uuid", "machine_uuid", type=click.UUID, help="UUID of a new machine.  [default: a random one]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the BMC.")
@click.option("--redfish-port", type=click.IntRange(0, 65535), default=0, help="0 takes a free port.")
@click.option("--ipmi-port", type=click.IntRange(0, 65535), default=0, help="0 takes a free port.")
@click.option("--user", default="admin", show_default=True, help="Login of a new BMC.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File whose first line is the password of a new BMC.  [default: one that is printed]",
)
@click.option("--tls/--http", "with_tls", default=True, show_default=True, help="Redfish with TLS, or without.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Folder of the machine: it goes on from there.",
)
@click.option("--serial-log", type=click.Path(dir_okay=False, path_type=Path), help="File for the serial port.")
@click.option("--on", is_flag=True, help="Switch the machine on.")
@click.option(
    "--control", is_flag=True, help="Open /_simulator/machine for hands in the machine room, without a login."
)
@click.option("--verbose", is_flag=True, help="Log what happens to standard error.")
def machine(
    state: Path,
    machine_uuid: uuid.UUID | None,
    iso: Path | None,
    user: str,
    password_file: Path | None,
    host: str,
    redfish_port: int,
    ipmi_port: int,
    with_tls: bool,
    serial_log: Path | None,
    on: bool,
    control: bool,
    verbose: bool,
    **parts: Any,
) -> None:
    """Run a virtual machine under QEMU (without KVM) whose BMC speaks Redfish and IPMI, until Ctrl-C.

    The BMC switches it on and off, boots it from its disks, from an image that it reads from a URL, or over the
    network, and carries its serial port as SOL. Inside the machine, 10.0.2.2 is this host's loopback.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING)
    folder = StateFolder(state.expanduser())
    try:
        password = read_password(password_file)
        find_programs()
        if parts["firmware"] == Firmware.UEFI:
            find_uefi()
        spec = machine_spec(folder, folder.identity(machine_uuid), **parts)
        virtual = VirtualMachine(
            spec,
            folder,
            users={user: password},
            address=host,
            redfish_port=redfish_port,
            ipmi_port=ipmi_port,
            tls=with_tls,
            control=control,
            serial_log=serial_log,
        )
        known = password_file is None and not virtual.remembers_logins
        asyncio.run(serve(virtual, iso, on=on, password=password if known else None))
    except (StateError, SpecError, BmcMemoryError, MachineFault, ImageFault, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


def machine_spec(
    folder: StateFolder,
    identity: Identity,
    *,
    disks: tuple[Path, ...],
    disk_size: int,
    disk_bus: str,
    firmware: str,
    memory: int,
    cpus: int,
    nics: int,
    nic_model: str,
    forwards: tuple[Forward, ...],
    tftp: Path | None,
    boot_file: str | None,
) -> MachineSpec:
    """The machine that the options ask for; its disks are made. Raises StateError, SpecError."""
    files = disks or (folder.path / "disk.raw",)
    if len(files) > MOST_DISKS:
        raise SpecError(f"{len(files)} disks: give at most {MOST_DISKS}")
    ports = [
        Nic(identity.mac(number), forwards if number == 1 else (), tftp, boot_file) for number in range(1, nics + 1)
    ]
    opened: list[Disk] = [
        open_disk(file, disk_serial(identity, number), disk_size) for number, file in enumerate(files, 1)
    ]
    return MachineSpec(
        identity,
        firmware=Firmware(firmware),
        cpus=cpus,
        memory=memory,
        disks=tuple(opened),
        disk_bus=DiskBus(disk_bus),
        nics=tuple(ports),
        nic_model=NicModel(nic_model),
    )


def disk_serial(identity: Identity, number: int) -> str:
    """The serial number of a disk: at most 20 letters, which is what a virtio disk shows."""
    return f"{identity.serial}D{number}"


async def serve(machine: VirtualMachine, iso: Path | None, *, on: bool, password: str | None) -> None:
    """Runs the machine until SIGTERM or SIGINT, then switches it off and stops cleanly.

    `password` is the well-known one, which is shown; one that somebody chose is not.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with machine:
            if iso is not None:
                await machine.insert_file(iso)
            if on:
                machine.switch_on()
            for line in announcement(machine, password):
                click.echo(line)
            await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def announcement(machine: VirtualMachine, password: str | None) -> list[str]:
    """What a user needs to reach the machine, one thing a line."""
    tls = machine.redfish.tls
    hint = f", password {password}" if password is not None else ""
    identity = machine.spec.identity
    return [
        f"redfish      {machine.redfish.url}",
        *([f"certificate  SHA-256 {tls.fingerprint}"] if tls is not None else []),
        f"ipmi         {machine.ipmi.host}:{machine.ipmi.port}",
        *(f"login        {name}{hint}" for name in machine.redfish.service.accounts.logins),
        f"machine      {identity.uuid} serial {identity.serial} {machine.spec.firmware}",
        *(f"port         {nic.mac}" for nic in machine.spec.nics),
        f"serial log   {machine.serial.log_file}",
        f"state        {machine.folder.path}",
    ]
