"""Installed systems as their boot loaders find them: file trees with what the programs of each distribution write
there, cut down to what decides what is started."""

from pathlib import Path

from ramdisk.volumes import FileSystem, Volume, Volumes

__all__ = ["System", "grubenv"]

_ROOT, _BOOT = "6d651fcb-6873-4d7a-b67e-d0a2b88c1d3d", "b3cf9a1e-0c5e-4f25-9f3a-52ad5fc3a6d5"
_ESP = "7B1E-4C2A"


class System:
    """A disk with partitions 1 (EFI), 2 (/boot) and 3 (/), or fewer, as folders."""

    ROOT, BOOT, ESP = _ROOT, _BOOT, _ESP

    def __init__(self, folder: Path, *, separate_boot: bool = False, kind: str = "ext4") -> None:
        self.folder = folder
        self.separate_boot = separate_boot
        self.kind = kind
        for name in ("esp", "boot", "root"):
            (folder / name).mkdir(parents=True)

    def write(self, path: str, text: str | bytes = b"x") -> "System":
        """`path` as the running system sees it."""
        file = self._place(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return self

    def link(self, path: str, target: str) -> "System":
        file = self._place(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)
        return self

    def kernels(
        self, *versions: str, kernel: str = "/boot/vmlinuz-{}", initrd: str = "/boot/initrd.img-{}"
    ) -> "System":
        for version in versions:
            self.write(kernel.format(version), f"kernel {version}").write(initrd.format(version), f"initrd {version}")
        return self

    @property
    def volumes(self) -> Volumes:
        found = [self._volume("sda1", 1, "vfat", "esp", _ESP, system=True)]
        if self.separate_boot:
            found.append(self._volume("sda2", 2, self.kind, "boot", _BOOT))
        found.append(self._volume("sda3", 3, self.kind, "root", _ROOT, label="cloudimg-rootfs"))
        return Volumes(found)

    def _volume(
        self, name: str, number: int, kind: str, folder: str, uuid: str, *, system: bool = False, label: str = ""
    ) -> Volume:
        trees = (FileSystem(self.folder / folder),)
        return Volume(name, number, kind, trees, uuid, label or None, system)

    def _place(self, path: str) -> Path:
        if path.startswith("/boot/efi/"):
            return self.folder / "esp" / path.removeprefix("/boot/efi/")
        if self.separate_boot and path.startswith("/boot/"):
            return self.folder / "boot" / path.removeprefix("/boot/")
        return self.folder / "root" / path.lstrip("/")


def grubenv(**values: str) -> bytes:
    lines = "".join(f"{name}={value}\n" for name, value in values.items())
    return (b"# GRUB Environment Block\n" + lines.encode()).ljust(1024, b"#")
