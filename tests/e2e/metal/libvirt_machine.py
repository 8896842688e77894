"""A machine of libvirt's with the Redfish emulator of OpenStack's sushy-tools before it: nobody here wrote either.

libvirt runs in session mode, as an ordinary user: as root it takes half a minute for what a medium's insertion asks.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.processes import Program, free_port, wait_until

__all__ = ["LibvirtMachine"]

PEERS = Path(__file__).resolve().parents[3] / ".peers" / "bin"
PROGRAMS = ("libvirtd", "virtlogd", "virsh", "setpriv")
BINDINGS = Path("/usr/lib/python3/dist-packages")
PYTHON = "/usr/bin/python3"
USER, GROUP = "nobody", "nogroup"
URI = "qemu:///session"
DOMAIN = """\
<domain type="qemu">
  <name>node1</name>
  <uuid>5b8a4b5e-51f5-4f3c-9d5b-3a1d4f7c2e01</uuid>
  <memory unit="MiB">1024</memory>
  <vcpu>1</vcpu>
  <os firmware="efi">
    <type arch="x86_64" machine="q35">hvm</type>
    <firmware><feature enabled="no" name="secure-boot"/></firmware>
    <boot dev="hd"/>
  </os>
  <features><acpi/></features>
  <cpu mode="maximum"/>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <devices>
    <disk type="file" device="disk">
      <driver name="qemu" type="raw"/>
      <source file="{folder}/images/node1.raw"/>
      <target dev="vda" bus="virtio"/>
    </disk>
    <interface type="user"><mac address="52:54:00:5b:8a:01"/><model type="virtio"/></interface>
    <serial type="file"><source path="{folder}/serial.log" append="on"/><target port="0"/></serial>
  </devices>
</domain>
"""


class LibvirtMachine:
    """Switched off, with an empty disk of 2 GiB. Skips the test where something is not installed."""

    def __init__(self) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            pytest.skip(f"no machine of libvirt's: {', '.join(missing)} is not installed")
        if not (PEERS / "sushy-emulator").exists() or not (BINDINGS / "libvirt.py").exists():
            pytest.skip("no emulator before libvirt: sushy-tools or python3-libvirt is not installed")
        if os.geteuid():
            pytest.skip("no machine of libvirt's: that needs root, to become an ordinary user")
        # A socket's path may have 107 letters, and others than root are to reach it.
        self.folder = Path(tempfile.mkdtemp(prefix="rackwright-"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def serial(self) -> str:
        file = self.folder / "serial.log"
        return file.read_text(errors="replace") if file.exists() else ""

    @contextlib.contextmanager
    def running_for(self) -> Iterator["LibvirtMachine"]:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._make()
            for name in ("virtlogd", "libvirtd"):
                stack.enter_context(self._program(name, name).running_for())
            wait_until("libvirt answers", lambda: self._virsh("version", check=False) == 0)
            stack.callback(self._virsh, "destroy", "node1", check=False)
            self._virsh("pool-define-as", "default", "dir", "--target", str(self.folder / "images"))
            self._virsh("pool-start", "default")
            self._virsh("define", str(self.folder / "domain.xml"))
            # By Debian's Python, whose libvirt it needs, and which every user may run.
            words = (PYTHON, str(PEERS / "sushy-emulator"), "--config", str(self.folder / "emulator.conf"))
            emulator = stack.enter_context(self._program("emulator", *words).running_for())
            wait_until("the emulator listens or has ended", lambda: self._listens() or not emulator.running)
            assert emulator.running, emulator.said()
            yield self

    def _listens(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True

    def answers(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/redfish/v1/Systems", timeout=30) as answer:
            return bool(answer.status == 200)

    def _make(self) -> None:
        for name in ("run", "images", "state", "home", "bindings", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "run").chmod(0o700)
        # Of the system's Python packages the emulator's venv is to see these alone.
        for file in (*BINDINGS.glob("libvirt*.py"), *BINDINGS.glob("libvirtmod*.so")):
            (self.folder / "bindings" / file.name).symlink_to(file)
        with (self.folder / "images" / "node1.raw").open("wb") as disk:
            disk.truncate(2 << 30)
        (self.folder / "domain.xml").write_text(DOMAIN.format(folder=self.folder))
        settings = {
            "SUSHY_EMULATOR_LISTEN_IP": "127.0.0.1",
            "SUSHY_EMULATOR_LISTEN_PORT": self.port,
            "SUSHY_EMULATOR_LIBVIRT_URI": URI,
            "SUSHY_EMULATOR_STATE_DIR": str(self.folder / "state"),
            "SUSHY_EMULATOR_FEATURE_SET": "full",
        }
        text = "".join(f"{key} = {value!r}\n" for key, value in settings.items())
        (self.folder / "emulator.conf").write_text(text)
        subprocess.run(["chown", "-R", f"{USER}:{GROUP}", str(self.folder)], check=True)

    def _program(self, name: str, *words: str) -> Program:
        return Program(self.folder, name, command=self._as_user(*words))

    def _virsh(self, *words: str, check: bool = True) -> int:
        done = subprocess.run(self._as_user("virsh", "-c", URI, *words), capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"virsh {words[0]}: {done.stderr}"
        return done.returncode

    def _as_user(self, *words: str) -> list[str]:
        home = self.folder / "home"
        places = {
            "HOME": home,
            "XDG_CONFIG_HOME": home,
            "XDG_CACHE_HOME": home,
            "XDG_RUNTIME_DIR": self.folder / "run",
            "TMPDIR": self.folder / "tmp",
            "PYTHONPATH": ":".join(
                map(str, [self.folder / "bindings", *PEERS.parent.glob("lib/python3*/site-packages")])
            ),
        }
        settings = [f"{name}={value}" for name, value in places.items()]
        return ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups", "env", *settings, *words]
