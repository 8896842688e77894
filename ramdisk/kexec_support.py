"""Whether, and how, this kernel may load another one; asked before anything is loaded (B52)."""

import re
from dataclasses import dataclass

from drivers.linux.host import Host
from protocol.errors import ErrorCode, OperationError

__all__ = ["KexecSupport", "is_loaded", "kexec_support"]

_HINT = "restart the machine by its firmware instead (node.reboot, or power.setPower on its BMC)"


@dataclass(frozen=True, slots=True)
class KexecSupport:
    """`classic`: kexec_load, by which user space hands over memory, is allowed as well. `lockdown`: the kernel only
    takes signed ones."""

    classic: bool
    lockdown: bool


def kexec_support(host: Host) -> KexecSupport:
    """Raises OperationError UNSUPPORTED with the reason and what to do instead.

    Sources: Documentation/ABI/testing/sysfs-kernel-kexec-kdump (`kexec_loaded` is there where the kernel has kexec at
    all); sysctl `kernel.kexec_load_disabled`, which stays set until the next boot; kernel_lockdown(7).
    """
    if host.text("kernel", "kexec_loaded") is None:
        raise _unsupported("this kernel was built without kexec")
    try:
        disabled = (host.proc / "sys" / "kernel" / "kexec_load_disabled").read_text().strip()
    except OSError:
        disabled = "0"
    if disabled != "0":
        raise _unsupported(
            "kexec was switched off in this kernel (kernel.kexec_load_disabled), until it is restarted"
        )
    if not host.has("kexec"):
        raise _unsupported("the program kexec (kexec-tools) is not installed here")
    mode = re.search(r"\[(\w+)\]", host.text("kernel", "security", "lockdown") or "")
    lockdown = mode is not None and mode[1] != "none"
    return KexecSupport(classic=not lockdown, lockdown=lockdown)


def is_loaded(host: Host) -> bool:
    """Whether a kernel is loaded that a jump would start."""
    return host.text("kernel", "kexec_loaded") == "1"


def _unsupported(why: str) -> OperationError:
    return OperationError(ErrorCode.UNSUPPORTED, f"{why}: {_HINT}")
