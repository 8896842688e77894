"""Logins of image servers: in the vault by the server's name, on the wire, and nowhere between."""

from pathlib import Path
from typing import Any

import pytest

from agent.bmcs import BmcMemory, Bmcs
from agent.image_logins import ImageLogins
from agent.vault import Vault, VaultKey
from protocol.secret import Secret
from simulators.login import DEFAULT_PASSWORD
from simulators.redfish import RedfishServer

WORD = "Im@ge:Pa55/word"
ENCODED = "Im%40ge%3APa55%2Fword"


@pytest.fixture
def vault(folder: Path) -> Vault:
    vault = Vault(folder / "vault.json", lambda: VaultKey.load(folder / "vault.key", make=True))
    vault.set("images/files.example", "reader", Secret(WORD))
    vault.set("images/files.example:8443", "other", Secret("another-word"))
    vault.set("images/2001:db8::1", "reader", Secret(WORD))
    vault.set("bmc/a", "admin", Secret(DEFAULT_PASSWORD))
    return vault


@pytest.mark.parametrize(
    ("image", "given"),
    [
        ("https://files.example/a.iso", f"https://reader:{ENCODED}@files.example/a.iso"),
        ("smb://FILES.example/share/a.iso", f"smb://reader:{ENCODED}@FILES.example/share/a.iso"),
        ("https://files.example:8443/a?x=1", "https://other:another-word@files.example:8443/a?x=1"),
        ("https://files.example:99/a.iso", f"https://reader:{ENCODED}@files.example:99/a.iso"),
        ("https://[2001:db8::1]/a.iso", f"https://reader:{ENCODED}@[2001:db8::1]/a.iso"),
        ("https://files.example.evil.example/a.iso", None),
        ("https://evil.example/files.example/a.iso", None),
        ("https://files.example@evil.example/a.iso", None),
        ("https://me:mine@files.example/a.iso", None),
        ("file:///srv/files.example/a.bin", None),
        ("rackwright:ramdisk", None),
        ("files.example/a.bin", None),
        ("https://[::1/x", None),
    ],
)
def test_a_login_goes_to_its_own_server_alone(image: str, given: str | None, vault: Vault) -> None:
    assert ImageLogins(vault).arguments({"image": image}) == {"image": given or image}


def test_every_image_of_a_list_has_its_own_and_other_arguments_are_left(vault: Vault) -> None:
    url = "https://files.example/a.iso"
    args: dict[str, Any] = {
        "updates": [{"image": url, "targets": [url]}, {"image": "https://x.example/b"}],
        "note": url,
    }
    given = ImageLogins(vault).arguments(args)
    updates: Any = given["updates"]
    assert updates[0] == {"image": f"https://reader:{ENCODED}@files.example/a.iso", "targets": [url]}
    assert updates[1] == args["updates"][1]
    assert given["note"] == url
    assert args["updates"][0]["image"] == url


async def test_a_bmc_is_given_the_login_beside_the_address_and_nobody_else_is(folder: Path, vault: Vault) -> None:
    bmcs = Bmcs(vault, BmcMemory(folder / "bmcs.json"))
    said: list[str] = []
    async with RedfishServer() as bmc:
        payload: dict[str, object] = {
            "driver": "redfish",
            "concern": "virtual-media",
            "operation": "insertMedia",
            "args": {"image": "https://files.example/a.iso"},
            "targetNodeId": "n1",
            "target": {"address": bmc.url, "credentialRef": "bmc/a"},
        }
        async with bmcs.turn(payload) as work:
            answer = await work.run(60, lambda message, _percent: said.append(message))
        # What the BMC was told is in its slot; the journal keeps no secrets.
        inserted = bmc.journal.entries("POST", "*InsertMedia")[0].body
    await bmcs.aclose()
    assert (inserted["Image"], inserted["UserName"]) == ("https://files.example/a.iso", "reader")
    assert "Password" in inserted
    for secret in (WORD, ENCODED):
        assert secret not in repr((payload, answer, said))
