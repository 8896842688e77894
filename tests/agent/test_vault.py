"""The vault: nothing readable without its key, every fault named with its reference, changes seen at once."""

import json
import os
from pathlib import Path

import pytest

from agent.errors import VaultError
from agent.vault import Vault, VaultKey
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret

PASSWORD = Secret("planted-p4ssword")


@pytest.fixture
def key_file(folder: Path) -> Path:
    return folder / "vault.key"


@pytest.fixture
def vault(folder: Path, key_file: Path) -> Vault:
    return Vault(folder / "vault.json", lambda: VaultKey.load(key_file, make=True))


def test_a_credential_comes_back_and_is_nowhere_in_clear(vault: Vault, folder: Path) -> None:
    assert vault.set("site1/bmc/rack4", "root", PASSWORD) == 1
    found = vault.lookup("site1/bmc/rack4")
    assert found is not None
    assert (found.user, found.password) == ("root", PASSWORD)
    assert "planted" not in repr(found)
    assert [(entry.ref, entry.user, entry.version) for entry in vault.list()] == [("site1/bmc/rack4", "root", 1)]
    for file in folder.iterdir():
        assert b"planted" not in file.read_bytes()
        assert b"root" not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


def test_an_unknown_reference_is_none(vault: Vault) -> None:
    assert vault.lookup("x") is None
    vault.set("a", "u", PASSWORD)
    assert vault.lookup("x") is None


def test_a_version_never_comes_back_also_after_a_removal_or_in_a_new_vault(vault: Vault, folder: Path) -> None:
    vault.set("a", "u", PASSWORD)
    first = vault.lookup("a")
    assert vault.remove("a")
    assert not vault.remove("a")
    assert vault.lookup("a") is None
    assert vault.set("a", "u", PASSWORD) == 2
    second = vault.lookup("a")
    (folder / "vault.json").unlink()
    assert vault.set("a", "u", PASSWORD) == 1
    third = vault.lookup("a")
    assert first is not None
    assert second is not None
    assert third is not None
    assert len({first.version, second.version, third.version}) == 3


def test_a_running_agent_sees_a_change_at_the_next_lookup(vault: Vault, folder: Path, key_file: Path) -> None:
    vault.set("a", "u", PASSWORD)
    running = Vault(folder / "vault.json", lambda: VaultKey.load(key_file))
    before = running.lookup("a")
    vault.set("a", "u", Secret("another"))
    after = running.lookup("a")
    assert before is not None
    assert after is not None
    assert after.password == Secret("another")
    assert after.version != before.version


def test_a_record_moved_to_another_reference_or_version_does_not_open(vault: Vault, folder: Path) -> None:
    vault.set("a", "u", PASSWORD)
    vault.set("b", "u", Secret("other"))
    file = folder / "vault.json"
    contents = json.loads(file.read_text())
    records = contents["records"]
    records["a"], records["b"] = records["b"], records["a"]
    file.write_text(json.dumps(contents))
    with pytest.raises(OperationError, match=r"record of 'a'.*damaged.*credentials set a") as failure:
        vault.lookup("a")
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    records["b"]["version"] = 7
    file.write_text(json.dumps(contents))
    with pytest.raises(VaultError, match="damaged"):
        vault.list()


def test_the_wrong_key_is_told_as_that_and_spoils_nothing(vault: Vault, folder: Path, tmp_path: Path) -> None:
    vault.set("a", "u", PASSWORD)
    before = (folder / "vault.json").read_bytes()
    other = Vault(folder / "vault.json", lambda: VaultKey.load(tmp_path / "other.key", make=True))
    for attempt in (lambda: other.set("b", "u", PASSWORD), other.list):
        with pytest.raises(VaultError, match="sealed with another key"):
            attempt()
    with pytest.raises(OperationError, match=r"credential 'a'.*another key"):
        other.lookup("a")
    assert (folder / "vault.json").read_bytes() == before


def test_a_damaged_file_is_told_as_that(vault: Vault, folder: Path) -> None:
    (folder / "vault.json").write_text("{")
    with pytest.raises(VaultError, match="damaged"):
        vault.list()


def test_a_key_that_others_can_read_is_refused(key_file: Path) -> None:
    key_file.write_text("ab" * 32)
    key_file.chmod(0o640)
    with pytest.raises(VaultError, match="chmod 600"):
        VaultKey.load(key_file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(key_file: Path) -> None:
    key_file.write_text("ab" * 32)
    key_file.chmod(0o600)
    os.chown(key_file, 12345, 12345)
    with pytest.raises(VaultError, match="another user"):
        VaultKey.load(key_file)


@pytest.mark.parametrize("content", [b"", b"short", b"zz" * 32, b"\xff" * 31])
def test_a_damaged_key_is_told_as_that(content: bytes, key_file: Path) -> None:
    key_file.write_bytes(content)
    key_file.chmod(0o600)
    with pytest.raises(VaultError, match="32 bytes, or 64 hexadecimal"):
        VaultKey.load(key_file)


def test_a_missing_key_says_where_one_comes_from(key_file: Path) -> None:
    with pytest.raises(VaultError, match="credentials set"):
        VaultKey.load(key_file)


def test_a_key_from_systemd_goes_before_the_file(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vault.key").write_bytes(b"k" * 32)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    key = VaultKey.load(key_file)
    assert key.data == b"k" * 32
    assert "kkk" not in repr(key)
    assert not key_file.exists()


@pytest.mark.parametrize("ref", ["", "../x", "a b", "/a", "a/", "x" * 300, "a\n"])
def test_an_unusable_reference_is_refused(ref: str, vault: Vault) -> None:
    with pytest.raises(VaultError, match="no credential reference"):
        vault.set(ref, "u", PASSWORD)


# Machines that have a password of their own under a shared reference


def test_a_rotated_machine_has_its_own_and_the_others_the_shared_one(vault: Vault, folder: Path) -> None:
    vault.set("rack", "root", PASSWORD)
    vault.set("next", "root", Secret("rotated-p4ssword"))
    new = vault.lookup("next")
    assert new is not None
    vault.stage("rack", "node_1", new)
    assert vault.is_staged("rack", "node_1")
    assert not vault.is_staged("rack", "node_2")
    staged, present = vault.staged("rack", "node_1"), vault.lookup("rack", "node_1")
    assert staged is not None
    assert present is not None
    assert (staged.password, staged.version) == (new.password, new.version)
    assert present.password == PASSWORD
    vault.promote("rack", "node_1")
    own, shared, other = vault.lookup("rack", "node_1"), vault.lookup("rack"), vault.lookup("rack", "node_2")
    assert own is not None
    assert shared is not None
    assert (own.password, own.user) == (new.password, "root")
    assert shared.password == PASSWORD
    assert other == shared
    assert own.version not in (shared.version, new.version)
    assert vault.origin("rack", "node_1") == new.version
    assert vault.origin("rack", "node_2") is None
    assert not vault.is_staged("rack", "node_1")
    assert [(entry.ref, entry.machines) for entry in vault.list()] == [("next", []), ("rack", ["node_1"])]
    assert b"rotated" not in (folder / "vault.json").read_bytes()


def test_a_withdrawn_password_leaves_the_present_one(vault: Vault) -> None:
    vault.set("rack", "root", PASSWORD)
    vault.set("next", "root", Secret("rotated-p4ssword"))
    new = vault.lookup("next")
    assert new is not None
    vault.stage("rack", "node_1", new)
    vault.discard("rack", "node_1")
    found = vault.lookup("rack", "node_1")
    assert found is not None
    assert found.password == PASSWORD
    assert vault.staged("rack", "node_1") is None
    vault.promote("rack", "node_1")
    assert vault.origin("rack", "node_1") is None


@pytest.mark.parametrize("removed", [False, True])
def test_what_an_operator_sets_or_removes_holds_for_every_machine(removed: bool, vault: Vault) -> None:
    vault.set("rack", "root", PASSWORD)
    new = vault.lookup("rack")
    assert new is not None
    vault.stage("rack", "node_1", new)
    vault.promote("rack", "node_1")
    vault.stage("rack", "node_2", new)
    own = vault.lookup("rack", "node_1")
    if removed:
        assert vault.remove("rack")
        assert vault.lookup("rack", "node_1") is None
    else:
        vault.set("rack", "root", Secret("set-by-hand"))
        found = vault.lookup("rack", "node_1")
        assert found is not None
        assert found.password == Secret("set-by-hand")
    assert not vault.is_staged("rack", "node_2")
    # A version never comes back, so that a refused password is not taken for a new one.
    vault.set("rack", "root", PASSWORD)
    vault.stage("rack", "node_1", new)
    vault.promote("rack", "node_1")
    again = vault.lookup("rack", "node_1")
    assert own is not None
    assert again is not None
    assert own.version != again.version
