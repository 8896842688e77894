"""What admits a machine to an image on its site's boot server, and the word that stands for it where it may be read.

The address of such an image is `…/images/<admission>/<checksum>/<name>`. The control plane makes the admission out of
a key of its own, the machine and the checksum, so it is the same whenever it is asked for, and gives it to the site's
agent and to the machine's ramdisk over their own links. A command, its row, its result and a journal hold the word in
its place.
"""

import re

__all__ = ["ADMISSION", "CHECKSUM", "admitted", "checksum_of", "hidden"]

ADMISSION = "rackwright:admission"
CHECKSUM = "[0-9a-f]{64}|[0-9a-f]{128}"
"""A sha256 or sha512 in hexadecimal, as a pattern."""
_HIDDEN = re.compile(rf"(?<=/images/){ADMISSION}(?=/({CHECKSUM})/)")


def hidden(address: str, admission: str) -> str:
    """The address with the word in it."""
    return address.replace(f"/images/{admission}/", f"/images/{ADMISSION}/", 1)


def admitted(address: str, admission: str) -> str:
    """The address as it is fetched."""
    return _HIDDEN.sub(lambda _: admission, address, count=1)


def checksum_of(address: str) -> str | None:
    """Of the image that the address is to admit to; None where the word is not in it."""
    found = _HIDDEN.search(address)
    return None if found is None else found[1]
