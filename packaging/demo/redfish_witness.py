"""A Redfish BMC's own word, by plain GETs with its login."""

import base64
import hashlib
import json
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from bmc import USER, Login

__all__ = ["RedfishWitness"]

_SECONDS = 10.0
_DEVICES = {"Pxe": "pxe", "Cd": "cd", "Hdd": "disk", "Usb": "usb", "BiosSetup": "bios", "None": "none"}


class RedfishWitness:
    """`fingerprint`: the SHA-256 of the certificate that the BMC has to show; none for plain HTTP.

    `resets` counts restarts by what the BMC itself has written down: Redfish has no resource for it. It gets this
    witness's `get`.
    """

    how = "HTTP GET"

    def __init__(
        self,
        address: str,
        login: Login,
        count_resets: Callable[[Callable[[str], Any]], int],
        fingerprint: str | None = None,
    ) -> None:
        self._address = address
        self._login = login
        self._count_resets = count_resets
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if fingerprint is not None:
            handlers.append(urllib.request.HTTPSHandler(context=_trusting(address, fingerprint)))
        self._opener = urllib.request.build_opener(*handlers)

    def power(self) -> str:
        state = str(self._system().get("PowerState"))
        return state.lower() if state in ("On", "Off") else state

    def boot(self) -> tuple[str, str]:
        boot = self._system().get("Boot") or {}
        target, enabled = str(boot.get("BootSourceOverrideTarget")), str(boot.get("BootSourceOverrideEnabled"))
        device = "none" if enabled == "Disabled" else _DEVICES.get(target, target)
        return device, f"{target}, {enabled}"

    def media(self) -> list[str]:
        return sorted({slot["Image"] for slot in self._slots() if slot.get("Inserted") and slot.get("Image")})

    def resets(self) -> int:
        return self._count_resets(self.get)

    def get(self, path: str) -> Any:
        """One resource. Raises OSError."""
        token = base64.b64encode(f"{USER}:{self._login.password}".encode()).decode()
        request = urllib.request.Request(self._address + path, headers={"Authorization": f"Basic {token}"})
        with self._opener.open(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read())

    def _system(self) -> dict[str, Any]:
        return next(self._members("/redfish/v1/Systems"))

    def _slots(self) -> Iterator[dict[str, Any]]:
        for collection in ("/redfish/v1/Systems", "/redfish/v1/Managers"):
            for owner in self._members(collection):
                if "VirtualMedia" in owner:
                    yield from self._members(owner["VirtualMedia"]["@odata.id"])

    def _members(self, collection: str) -> Iterator[dict[str, Any]]:
        for member in self.get(collection)["Members"]:
            yield self.get(member["@odata.id"])


def _trusting(address: str, fingerprint: str) -> ssl.SSLContext:
    """A context that trusts the one certificate that the BMC announced when it started."""
    parts = urlsplit(address)
    pem = ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=_SECONDS)
    if hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() != fingerprint:
        raise OSError(f"{address} shows another certificate than it announced")
    context = ssl.create_default_context(cadata=pem)
    context.check_hostname = False
    return context
