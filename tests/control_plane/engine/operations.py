"""One operation of each concern, with sound arguments."""

from typing import Any

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "power": ("setPower", {"action": "reset"}),
    "management": ("getHealth", {}),
    "boot": ("setBootDevice", {"device": "pxe"}),
    "deploy": ("eraseDisks", {"mode": "metadata"}),
    "inspect": ("getInventory", {}),
    "virtual-media": ("insertMedia", {"image": "https://images.example/a.iso"}),
    "console": ("getConsole", {}),
    "bios": ("resetBios", {}),
    "raid": ("getRaid", {}),
    "firmware": ("getFirmware", {}),
    "config": ("getConfig", {}),
}
