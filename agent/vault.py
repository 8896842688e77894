"""BMC credentials at rest: one file of AES-256-GCM records, opened with a key that lies elsewhere.

The key comes from systemd (`LoadCredential=vault.key:…` or `LoadCredentialEncrypted=`, which lands in
`$CREDENTIALS_DIRECTORY`), else from a file of mode 0600. A record is bound to its reference and version, so that
records cannot be exchanged within the file. A reference's version only grows, also over a removal: it is part of
`Target.credential_version`, which tells the breaker that a refused password has been replaced.

Many machines may share one reference. Once the password of one of them is rotated, that machine has a record of its
own under the reference, and the others go on with the shared one. While a rotation is under way, and after a crash
until it is settled, its new password is *staged* beside the old one; a reference that an operator sets anew ends all
that.
"""

import base64
import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agent.errors import VaultError
from agent.files import give_to_owner_of, write_durably
from protocol.errors import ErrorCode, OperationError
from protocol.secret import Secret

__all__ = ["Credential", "Listed", "Vault", "VaultKey"]

_KEY_BYTES = 32
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]*(/[A-Za-z0-9._@:-]+)*")


@dataclass(frozen=True, slots=True)
class Credential:
    """A user and password; `version` changes whenever either does."""

    user: str
    password: Secret
    version: str


class Listed(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What may be shown of a credential."""

    ref: str
    user: str
    version: int
    changed_at: int
    """Milliseconds since 1970, by the wall clock of the host."""
    machines: list[str] = []
    """Node ids that have a password of their own under this reference, since theirs was rotated."""


class _Record(msgspec.Struct, frozen=True):
    version: int
    changed_at: int
    sealed: str | None
    """Base64 of nonce and ciphertext; None once it was removed."""


class _Contents(msgspec.Struct, frozen=True):
    vault_id: str
    key_id: str
    records: dict[str, _Record] = {}
    format: int = 1


class _Pair(msgspec.Struct, frozen=True, omit_defaults=True):
    user: str
    password: str
    origin: str = ""
    """The version of the credential that a rotation took it from."""


@dataclass(frozen=True, slots=True)
class VaultKey:
    """The data key. It is read once, and shown by nothing."""

    data: bytes

    def __repr__(self) -> str:
        return "VaultKey(***)"

    @classmethod
    def load(cls, key_file: Path, *, make: bool = False) -> "VaultKey":
        """Raises VaultError that says what to do. `make`: a missing key file is made, durably, with mode 0600."""
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        if folder and (given := Path(folder) / "vault.key").exists():
            return cls(_key_from(given, given.read_bytes()))
        try:
            status = key_file.stat()
        except FileNotFoundError:
            if not make:
                raise VaultError(
                    f"there is no vault key: {key_file} is missing. It is made by the first "
                    "`rackwright agent credentials set`, or given by systemd as the credential vault.key"
                ) from None
            key_file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(key_file, secrets.token_hex(_KEY_BYTES).encode() + b"\n")
            status = key_file.stat()
        except OSError as error:
            raise VaultError(f"the vault key {key_file} cannot be read: {error.strerror}") from error
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise VaultError(f"the vault key {key_file} can be read by others: chmod 600 {key_file}")
        if status.st_uid not in (0, os.geteuid(), key_file.parent.stat().st_uid):
            raise VaultError(f"the vault key {key_file} belongs to another user: chown it to root or to the agent")
        try:
            return cls(_key_from(key_file, key_file.read_bytes()))
        except OSError as error:
            raise VaultError(f"the vault key {key_file} cannot be read: {error.strerror}") from error

    @property
    def id(self) -> str:
        """Tells keys apart without giving one away."""
        return hashlib.sha256(b"rackwright vault key id\0" + self.data).hexdigest()[:16]


class Vault:
    """The file at `path`; `key` is asked for when it is first needed. `revealed` hears of each password given out.

    Changes made by another process are seen at the next lookup.
    """

    def __init__(
        self, path: Path, key: Callable[[], VaultKey], *, revealed: Callable[[Secret], None] | None = None
    ) -> None:
        self._path = path
        self._load_key = key
        self._key: VaultKey | None = None
        self._revealed = revealed
        self._seen: tuple[int, int, int] | None = None
        self._contents: _Contents | None = None

    def lookup(self, ref: str, node: str = "") -> Credential | None:
        """The credential, or None; that of the machine `node` (its id) where it has its own under the reference.

        Raises OperationError INVALID_ARGUMENT when the vault itself cannot be used.
        """
        found = self._find(_own(ref, node), ref) if node else None
        return (found or self._find(ref, ref) or (None, None))[0]

    # Rotation: both passwords are kept until one of them is proven

    def stage(self, ref: str, node: str, new: Credential) -> None:
        """Keeps the new credential beside the machine's present one, durably. Raises VaultError."""
        self._change(ref, lambda contents: {_staged(ref, node): _Pair(new.user, new.password.reveal(), new.version)})

    def staged(self, ref: str, node: str) -> Credential | None:
        """The new credential of a rotation that is not settled, with the version of the one that it was taken from.

        Raises OperationError INVALID_ARGUMENT when the vault itself cannot be used.
        """
        found = self._find(_staged(ref, node), ref)
        return None if found is None else Credential(found[0].user, found[0].password, found[1])

    def is_staged(self, ref: str, node: str) -> bool:
        """Whether a rotation of this machine's password is under way, or was left unsettled.

        Raises OperationError INVALID_ARGUMENT when the vault itself cannot be used.
        """
        try:
            contents = self._read()
        except VaultError as error:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, f"credential {ref!r}: {error}") from error
        record = contents.records.get(_staged(ref, node)) if contents else None
        return record is not None and record.sealed is not None

    def promote(self, ref: str, node: str) -> None:
        """The staged credential becomes the machine's own, in one durable step. Raises VaultError."""

        def change(contents: _Contents) -> dict[str, _Pair | None]:
            key = _staged(ref, node)
            record = contents.records.get(key)
            if record is None or record.sealed is None:
                return {}
            return {_own(ref, node): self._open(contents, key, record), key: None}

        self._change(ref, change)

    def discard(self, ref: str, node: str) -> None:
        """Forgets the staged credential: the machine has its present one still. Raises VaultError."""
        self._change(ref, lambda contents: {_staged(ref, node): None})

    def origin(self, ref: str, node: str) -> str | None:
        """The version of the credential that the machine's own was taken from; None where it has none of its own."""
        found = self._find(_own(ref, node), ref)
        return None if found is None else found[1]

    def list(self) -> list[Listed]:
        """What there is, by reference. Raises VaultError."""
        contents = self._read()
        return [
            Listed(
                ref,
                self._open(contents, ref, record).user,
                record.version,
                record.changed_at,
                _machines(contents, ref),
            )
            for ref, record in sorted(contents.records.items() if contents else ())
            if contents is not None and record.sealed is not None and " " not in ref
        ]

    def set(self, ref: str, user: str, password: Secret) -> int:
        """Stores a credential durably and returns its version; it holds for every machine under the reference.

        Raises VaultError.
        """
        if not _REFERENCE.fullmatch(ref) or len(ref) > 200:
            raise VaultError(f"{ref!r} is no credential reference: use letters, digits and . _ - @ : between slashes")
        self._change(
            ref,
            lambda contents: {**dict.fromkeys(_beneath(contents, ref)), ref: _Pair(user, password.reveal())},
        )
        contents = self._read()
        return contents.records[ref].version if contents is not None else 1

    def remove(self, ref: str) -> bool:
        """False when there was none. Raises VaultError."""
        with self._exclusively():
            contents = self._read()
            record = contents.records.get(ref) if contents else None
            if contents is None or record is None or record.sealed is None:
                return False
            self._write(contents, {key: self._sealed(contents, key, None) for key in (ref, *_beneath(contents, ref))})
        return True

    def _find(self, key: str, ref: str) -> tuple[Credential, str] | None:
        """The credential of a record, and its origin."""
        try:
            contents = self._read()
            record = contents.records.get(key) if contents else None
            if contents is None or record is None or record.sealed is None:
                return None
            pair = self._open(contents, key, record)
        except VaultError as error:
            raise OperationError(ErrorCode.INVALID_ARGUMENT, f"credential {ref!r}: {error}") from error
        password = Secret(pair.password)
        if self._revealed is not None:
            self._revealed(password)
        return Credential(pair.user, password, f"{key}#{contents.vault_id}.{record.version}"), pair.origin

    def _change(self, ref: str, change: Callable[[_Contents], Mapping[str, _Pair | None]]) -> None:
        """Writes the records that `change` asks for, all in one step; None removes one."""
        with self._exclusively():
            contents = self._read() or _Contents(secrets.token_hex(4), self._data_key().id)
            self._check_key(contents)
            self._write(contents, {key: self._sealed(contents, key, pair) for key, pair in change(contents).items()})

    def _sealed(self, contents: _Contents, key: str, pair: _Pair | None) -> _Record:
        """The next record under a key: versions only grow, and a removal keeps the last one."""
        before = contents.records.get(key)
        version = before.version if before else 0
        sealed = None
        if pair is not None:
            version += 1
            sealed = self._seal(key, version, pair)
        return _Record(version, time.time_ns() // 1_000_000, sealed)

    def _read(self) -> _Contents | None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen != self._seen:
                self._contents = msgspec.json.decode(self._path.read_bytes(), type=_Contents)
                self._seen = seen
        except FileNotFoundError:
            self._contents, self._seen = None, None
        except OSError as error:
            raise VaultError(f"the vault {self._path} cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise VaultError(
                f"the vault {self._path} is damaged ({error}): restore it, or remove it and set its credentials again"
            ) from error
        return self._contents

    def _write(self, contents: _Contents, records: Mapping[str, _Record]) -> None:
        changed = _Contents(contents.vault_id, contents.key_id, {**contents.records, **records})
        try:
            write_durably(self._path, msgspec.json.format(msgspec.json.encode(changed), indent=1))
        except OSError as error:
            raise VaultError(f"the vault {self._path} cannot be written: {error.strerror}") from error

    def _open(self, contents: _Contents, ref: str, record: _Record) -> _Pair:
        self._check_key(contents)
        try:
            data = base64.b64decode(record.sealed or "", validate=True)
            plain = AESGCM(self._data_key().data).decrypt(data[:12], data[12:], _bound_to(ref, record.version))
            return msgspec.json.decode(plain, type=_Pair)
        except (InvalidTag, ValueError, msgspec.DecodeError):
            raise VaultError(
                f"the record of {ref!r} in {self._path} is damaged: set it again with "
                f"`rackwright agent credentials set {ref}`"
            ) from None

    def _seal(self, ref: str, version: int, pair: _Pair) -> str:
        nonce = secrets.token_bytes(12)
        plain = msgspec.json.encode(pair)
        return base64.b64encode(
            nonce + AESGCM(self._data_key().data).encrypt(nonce, plain, _bound_to(ref, version))
        ).decode()

    def _check_key(self, contents: _Contents) -> None:
        if contents.key_id != self._data_key().id:
            raise VaultError(
                f"the vault {self._path} was sealed with another key than the one at hand: "
                "bring back its key (vault.key_file, or the systemd credential vault.key), "
                "or remove the vault and set its credentials again"
            )

    def _data_key(self) -> VaultKey:
        if self._key is None:
            self._key = self._load_key()
        return self._key

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """One writer at a time: two operators must not lose each other's change."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            give_to_owner_of(self._path.parent, handle)
        except OSError as error:
            raise VaultError(
                f"the folder of the vault {self._path} cannot be written ({error.strerror}): "
                "run this as root or as the agent's user"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _own(ref: str, node: str) -> str:
    """The key of a machine's own record; no reference has a space in it."""
    return f"{ref} {node}"


def _staged(ref: str, node: str) -> str:
    return f"{ref} {node} next"


def _beneath(contents: _Contents, ref: str) -> list[str]:
    """The keys of the records that machines have under a reference."""
    return [
        key for key, record in contents.records.items() if key.startswith(f"{ref} ") and record.sealed is not None
    ]


def _machines(contents: _Contents, ref: str) -> list[str]:
    return sorted(key.split(" ")[1] for key in _beneath(contents, ref) if not key.endswith(" next"))


def _bound_to(ref: str, version: int) -> bytes:
    return f"{ref}\0{version}".encode()


def _key_from(path: Path, data: bytes) -> bytes:
    """32 bytes as they are, or as 64 hexadecimal digits."""
    if len(data) == _KEY_BYTES:
        return data
    try:
        key = bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise VaultError(f"the vault key {path} is damaged: it is 32 bytes, or 64 hexadecimal digits")
    return key
