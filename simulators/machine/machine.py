"""A virtual machine with its BMC: one QEMU, one power, one boot override, one drive; Redfish and IPMI before them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from simulators.ipmi import IpmiServer
from simulators.ipmi.boot_options import BOOT_VALID_SECONDS, BootOverride
from simulators.login import DEFAULT_PASSWORD, DEFAULT_USER
from simulators.machine.bmc_memory import BmcMemoryFile, InsertedImage, SavedAccount, read_memory
from simulators.machine.boot_override import boot_of_flags, plan_of
from simulators.machine.command_line import qemu_command
from simulators.machine.control import machine_control
from simulators.machine.firmware import firmware_version, prepare
from simulators.machine.host import Cause, Host, HostState, Order
from simulators.machine.image import ImageFault, open_file, open_url
from simulators.machine.ipmi_face import HostMachine, ipmi_bmc
from simulators.machine.optical_drive import OpticalDrive
from simulators.machine.process import Ending, MachineFault, QemuProcess, Running, StartQemu, start_qemu
from simulators.machine.redfish_face import HostPower, MachineMedia, note, show_image
from simulators.machine.serial_port import SerialPort
from simulators.machine.spec import MachineSpec
from simulators.machine.state_folder import StateError, StateFolder
from simulators.machine.tree import CD, SYSTEM, machine_tree
from simulators.redfish import Account, RedfishServer, TlsMaterial
from simulators.redfish.boot import OVERRIDE_KEYS
from simulators.redfish.documents import JsonObject, schema_of

log = logging.getLogger(__name__)

DEFAULT_USERS: Mapping[str, str] = {DEFAULT_USER: DEFAULT_PASSWORD}
# The mode follows from the firmware, which may be another one when the folder is opened again.
_REMEMBERED = (OVERRIDE_KEYS | {"BootOrder"}) - {"BootSourceOverrideMode"}


class VirtualMachine:
    """One machine with its BMC, in a state folder. An async context manager; after it nothing runs any more.

    `users` are the logins of a new BMC; what was changed since is remembered. `control` opens `/_simulator`, without
    a login. What holds after a crash or a kill of this process: the disks as far as the guest had them written, the
    firmware's variables, the boot override and order, the image in the drive, the logins and the certificate. Whether
    the machine starts again, its PowerRestorePolicy says. Sessions, tasks and the event logs are gone.

    Raises StateError, BmcMemoryError, OSError on entry; a machine that does not start is a state of the machine, told
    in its event log.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: StateFolder,
        *,
        users: Mapping[str, str] = DEFAULT_USERS,
        address: str = "127.0.0.1",
        redfish_port: int = 0,
        ipmi_port: int = 0,
        tls: bool = True,
        control: bool = False,
        serial_log: Path | None = None,
        start: StartQemu = start_qemu,
    ) -> None:
        self.spec = spec
        self._start = start
        self.folder = folder
        folder.make()
        self._memory = BmcMemoryFile(folder.bmc)
        self._boot: JsonObject = {}
        self._follows_flags = False
        self._flags_timer: asyncio.TimerHandle | None = None
        self.network_is_up = True
        self.host = Host(self._launch)
        self.serial = SerialPort(serial_log or folder.serial_log)
        version = firmware_version(spec.firmware)
        logins = self._logins(users)
        self.redfish = RedfishServer(
            machine_tree(spec, version),
            users={name: Account(account.password, account.role) for name, account in logins.items()},
            tls=self._tls(address) if tls else False,
            host=address,
            port=redfish_port,
            control=control,
        )
        self.redfish.controls["machine"] = partial(machine_control, self)
        service = self.redfish.service
        self._ipmi_machine = HostMachine(self.host, service.timeline.clock)
        passwords = {name: account.password for name, account in logins.items()}
        bmc = ipmi_bmc(spec, self._ipmi_machine, self.serial, passwords, version)
        self.ipmi = IpmiServer(bmc, host=address, port=ipmi_port)
        service.power = HostPower(service.machine, self.host)
        service.power.register(service.routes)
        self.drive = OpticalDrive(self.host, folder.path, self._note)
        self.media = MachineMedia(service.machine, service.tasks, self._insert, self.drive.eject)
        self.media.register(service.routes)
        self._restore_boot()
        service.store.on_change = self._changed
        self._ipmi_machine.shared_options.on_flags = self._flags_changed
        service.certificates.serve = self._remembering(service.certificates.serve)
        self.host.on_state.append(self._power_changed)

    async def __aenter__(self) -> Self:
        await self.folder.acquire()
        try:
            if read_memory(self.folder.bmc) != self._memory.now:
                raise StateError(f"another simulator has changed {self.folder.path} just now: start this one again")
            if self.redfish.tls is not None:
                self._remember_certificate(self.redfish.tls)
            await self.redfish.start()
            await self.ipmi.start()
            await self.host.__aenter__()
            await self._restore()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def qemu(self) -> QemuProcess | None:
        """The machine's QEMU while it runs."""
        running = self.host.running
        return running if isinstance(running, QemuProcess) else None

    @property
    def remembers_logins(self) -> bool:
        """Whether the logins are those of an earlier run, changed there, and not what `users` says."""
        return bool(self._memory.now.accounts)

    def switch_on(self) -> None:
        """Switches the host on, as a hand would; nothing where it is on."""
        self.host.order(Order.START, Cause.HAND)

    async def insert_file(self, file: Path) -> None:
        """Puts an image of this host into the drive, in the place of what is there.

        Raises ImageFault, MachineFault, OSError.
        """
        image = local_image(file)
        await self._insert(image)
        show_image(self.media, self.redfish.service.machine, image)

    async def set_network(self, *, up: bool) -> None:
        """Plugs the network cables in, or pulls them; it stays so over starts of the machine. Raises MachineFault."""
        self.network_is_up = up
        await self.host.between(self._set_links)

    async def _stop(self) -> None:
        if self._flags_timer is not None:
            self._flags_timer.cancel()
        await self.media.stop()
        await self.ipmi.stop()
        await self.redfish.stop()
        self.host.on_state.remove(self._power_changed)
        await self.host.__aexit__()
        await self.drive.close()
        await self.serial.close()
        self.folder.release()

    # Starts.

    async def _launch(self, cause: Cause, on_end: Callable[[Ending, str], None]) -> Running:
        """Starts QEMU for what the override says, and uses the override up."""
        service = self.redfish.service
        self._ipmi_machine.starts(cause)
        plan = plan_of(service.machine.property(SYSTEM, "Boot") or {})
        service.machine.host_starts(SYSTEM)
        files = prepare(self.spec.firmware, plan, self.folder.nvram)
        qemu = await self._start(
            lambda wires: qemu_command(self.spec, plan, files, wires),
            self.folder.path,
            self.folder.qemu_log,
            on_end,
            keep_open=[self.folder.lock],
        )
        try:
            qemu.on_event = self._event
            await self.serial.connect(qemu.serial)
            await self.drive.attach(qemu)
            await self._set_links(qemu)
            await qemu.execute("cont")
        except BaseException:
            await qemu.end()
            raise
        log.info("the host starts from %s (%s)", plan.devices[0] if plan.uri is None else "an address", cause)
        return qemu

    async def _set_links(self, running: Running | None) -> None:
        if running is not None:
            for number in range(len(self.spec.nics)):
                await running.execute("set_link", name=f"nic{number}", up=self.network_is_up)

    def _event(self, name: str, data: dict[str, Any]) -> None:
        if name == "BLOCK_IO_ERROR":
            what, words = data.get("node-name") or data.get("device"), data.get("reason", "no reason given")
            self._note(f"QEMU could not {data.get('operation', 'access')} {what}: {words}")

    # The drive.

    async def _insert(self, image: InsertedImage) -> None:
        if image.local:
            opened = open_file(Path(image.address))
            await self.drive.insert(opened)
        else:
            await self.drive.insert(
                await open_url(
                    image.address,
                    user=image.user,
                    password=image.password,
                    verify=image.verify,
                    spool=self.folder.path,
                )
            )
        self._remember(image=image)

    # What is remembered.

    async def _restore(self) -> None:
        """The image is in the drive again, and the power as the policy says, as after a cut of the mains."""
        image = self._memory.now.image
        if image is not None:
            try:
                await self._insert(image)
                show_image(self.media, self.redfish.service.machine, image)
            except (ImageFault, MachineFault, OSError) as error:
                self._remember(image=None)
                self._note(f"The virtual medium could not be inserted again: {error}")
        memory = self._memory.now
        if memory.restore_policy == "AlwaysOn" or (memory.restore_policy == "LastState" and memory.powered):
            self.host.order(Order.START, Cause.RESTORED)

    def _restore_boot(self) -> None:
        """Shows the override and the order that were set, as far as this firmware can follow them."""
        boot = self.redfish.service.machine.property(SYSTEM, "Boot") or {}
        known = {key: value for key, value in self._memory.now.boot.items() if key in boot}
        allowed = boot["BootSourceOverrideTarget@Redfish.AllowableValues"]
        if known.get("BootSourceOverrideTarget", "None") in allowed:
            self.redfish.state.patch(SYSTEM, {"Boot": known})
        self.redfish.state.patch(SYSTEM, {"PowerRestorePolicy": self._memory.now.restore_policy})
        self._boot = self._override()
        self._ipmi_machine.shared_options.show(self.redfish.service.machine.property(SYSTEM, "Boot"))

    def _override(self) -> JsonObject:
        return remembered(self.redfish.service.machine.property(SYSTEM, "Boot") or {})

    def _changed(self, path: str, document: JsonObject) -> None:
        """Sees each change of a resource before it is stored."""
        self.redfish.service.behaviour.on_change(path, document)
        if path == SYSTEM:
            boot = remembered(document["Boot"])
            if boot != self._boot:
                self._boot = boot
                if not self._follows_flags:
                    self._ipmi_machine.shared_options.show(document["Boot"])
            self._remember(boot=boot, restore_policy=str(document.get("PowerRestorePolicy")))
        elif path == CD and not document.get("Inserted"):
            self._remember(image=None)
        elif schema_of(document) == "ManagerAccount":
            asyncio.get_running_loop().call_soon(self._remember_accounts)

    def _flags_changed(self, override: BootOverride | None) -> None:
        """IPMI has set the boot flags, or they have run out: Redfish shows the same."""
        self._follows_flags = True
        try:
            self.redfish.state.patch(SYSTEM, {"Boot": boot_of_flags(override)})
        finally:
            self._follows_flags = False
        if self._flags_timer is not None:
            self._flags_timer.cancel()
            self._flags_timer = None
        if override is not None:
            options, clock = self._ipmi_machine.shared_options, self._ipmi_machine.clock
            self._flags_timer = asyncio.get_running_loop().call_later(
                BOOT_VALID_SECONDS + 1, lambda: options.override(clock())
            )

    def _power_changed(self, state: HostState, cause: Cause) -> None:
        if state in (HostState.ON, HostState.OFF):
            self._remember(powered=state is HostState.ON)

    def _remember(self, **values: Any) -> None:
        """Writes down what has changed; a disk that is full must not stop the machine."""
        try:
            self._memory.change(**values)
        except OSError as error:
            log.error(
                "%s cannot be written: %s; what has changed is lost at the end", self.folder.bmc, error.strerror
            )

    def _logins(self, users: Mapping[str, str]) -> dict[str, SavedAccount]:
        new = {name: SavedAccount(password, "Administrator") for name, password in users.items()}
        return {**new, **self._memory.now.accounts}

    def _remember_accounts(self) -> None:
        """Logins that Redfish has changed hold for IPMI too, and after a restart."""
        logins = self.redfish.service.accounts.logins
        self._remember(accounts={name: SavedAccount(login.password, login.role) for name, login in logins.items()})
        for name, login in logins.items():
            for _, user in self.ipmi.bmc.users.named(name.encode()):
                user.password = login.password.encode()

    def _tls(self, address: str) -> TlsMaterial:
        """The BMC's certificate, the same in each run, so that a client which pinned it goes on."""
        memory = self._memory.now
        if memory.certificate:
            return TlsMaterial(memory.certificate.encode(), memory.key.encode())
        return TlsMaterial.self_signed((address, "localhost"))

    def _remember_certificate(self, material: TlsMaterial) -> None:
        self._remember(certificate=material.certificate.decode(), key=material.key.decode())

    def _remembering(self, serve: Callable[[bytes, bytes], None] | None) -> Callable[[bytes, bytes], None] | None:
        if serve is None:
            return None

        def serve_and_remember(certificate: bytes, key: bytes) -> None:
            serve(certificate, key)
            self._remember_certificate(TlsMaterial(certificate, key))

        return serve_and_remember

    def _note(self, text: str) -> None:
        note(self.redfish.service.machine, text)


def local_image(file: Path) -> InsertedImage:
    return InsertedImage(str(file.absolute()), local=True)


def remembered(boot: JsonObject) -> JsonObject:
    """The part of `Boot` that the BMC keeps."""
    return {key: boot[key] for key in sorted(_REMEMBERED) if key in boot}
