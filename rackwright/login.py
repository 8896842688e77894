"""Which control plane the operator's commands talk to, and by which token: kept in one file, for its owner alone."""

import json
import os
import tempfile
from pathlib import Path

import msgspec

from protocol.errors import RackwrightError
from protocol.secret import Secret
from rackwright.client import Client

__all__ = ["Login", "LoginNeeded", "LoginNotKept", "connect", "login_file", "store_login"]


class LoginNeeded(RackwrightError):
    """Nobody has logged in here."""


class LoginNotKept(RackwrightError):
    """The login is good, and cannot be written down."""


class Login(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `rackwright login` keeps."""

    url: str
    token: str
    ca_file: str | None = None
    pin: str | None = None
    allow_http: bool = False

    def __repr__(self) -> str:
        return f"Login({self.url!r})"


def login_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "rackwright" / "login.json"


def store_login(login: Login) -> Path:
    """Whole or not at all, 0600. Returns the file. Raises LoginNotKept."""
    file = login_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".login.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(msgspec.json.encode(login))
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LoginNotKept(
            f"the login cannot be kept in {file}: {error.strerror}: mend that, or set XDG_CONFIG_HOME"
        ) from error
    return file


def connect(tenant_id: str | None) -> Client:
    """A client for whoever has logged in; `RACKWRIGHT_URL` and `RACKWRIGHT_TOKEN_FILE` take precedence.

    Raises LoginNeeded, RequestError.
    """
    login = _from_environment() or _stored()
    return Client(
        login.url,
        Secret(login.token),
        tenant_id=tenant_id,
        ca_file=login.ca_file,
        pin=login.pin,
        allow_http=login.allow_http,
    )


def _from_environment() -> Login | None:
    url, file = os.environ.get("RACKWRIGHT_URL"), os.environ.get("RACKWRIGHT_TOKEN_FILE")
    if not url or not file:
        return None
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise LoginNeeded(f"RACKWRIGHT_TOKEN_FILE: {file} cannot be read: {error.strerror}") from error
    return Login(url, token, os.environ.get("RACKWRIGHT_CA_FILE"), os.environ.get("RACKWRIGHT_PIN"))


def _stored() -> Login:
    file = login_file()
    try:
        return msgspec.convert(json.loads(file.read_bytes()), Login)
    except FileNotFoundError:
        raise LoginNeeded("nobody has logged in here: run `rackwright login URL` first") from None
    except (OSError, ValueError) as error:
        raise LoginNeeded(
            f"{file} cannot be used ({type(error).__name__}): run `rackwright login URL` anew"
        ) from None
