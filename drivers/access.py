"""How a BMC is reached, as a command line says it: the options, and the target and password that they name."""

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from drivers.target import Target
from protocol.addresses import TlsPolicy
from protocol.durations import parse_duration
from protocol.errors import Issue, OperationError
from protocol.operations import DRIVERS
from protocol.secret import Secret

__all__ = ["CREDENTIAL_FILE_VARIABLE", "Access", "access_options", "password_from", "seconds_of", "target_of"]

CREDENTIAL_FILE_VARIABLE = "RACKWRIGHT_BMC_PASSWORD_FILE"
_MAX_PASSWORD_LENGTH = 4096


@dataclass(frozen=True, kw_only=True)
class Access:
    """How the BMC is reached, as the command line says it."""

    address: str | None
    driver: str
    user: str | None
    password_file: str | None
    password_stdin: bool
    verify: str | None
    insecure: bool
    allow_http: bool
    timeout: str | None


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say how a BMC is reached; they make an `Access`."""
    for option in reversed(
        (
            click.option(
                "--address", metavar="URL", help="https://host, ipmi://host, simulated://name or a bare host."
            ),
            click.option(
                "--driver",
                type=click.Choice(["auto", *DRIVERS]),
                default="auto",
                show_default=True,
                help="Which protocol; auto goes by the address.",
            ),
            click.option("--user", metavar="U", help="The BMC's user name."),
            click.option(
                "--password-file",
                metavar="F",
                help=f"Read the password from this file (or from the one that {CREDENTIAL_FILE_VARIABLE} names).",
            ),
            click.option("--password-stdin", is_flag=True, help="Read the password from standard input."),
            click.option(
                "--verify", metavar="FORM", help="Trust: verify (default), ca:/path.pem, sha256:<hex> or none."
            ),
            click.option("--insecure", is_flag=True, help="Take any certificate: the same as --verify none."),
            click.option("--allow-http", is_flag=True, help="Consent to send the password in clear over http://."),
            click.option("--timeout", metavar="D", help="Such as 90s or 10m; by default what the operation needs."),
        )
    ):
        command = option(command)
    return command


def target_of(access: Access, issues: list[Issue]) -> Target | None:
    """The BMC, with its password read. What is wrong goes to `issues`, and then there is none."""
    verify = _trust(access, issues)
    password = _password(access, issues)
    if access.address is None:
        issues.append(Issue("--address", "is required", "such as --address https://192.0.2.10"))
        return None
    try:
        return Target(
            address=access.address,
            driver=access.driver,
            username=access.user,
            password=password,
            verify=verify,
            allow_http=access.allow_http,
        )
    except OperationError as error:
        issues.append(Issue("--address", error.message))
        return None


def seconds_of(text: str | None, issues: list[Issue]) -> float | None:
    """What --timeout says, where it says anything."""
    if text is None:
        return None
    try:
        seconds = parse_duration(text) / 1000
    except ValueError as error:
        issues.append(Issue("--timeout", str(error)))
        return None
    if seconds <= 0:
        issues.append(Issue("--timeout", "must be more than nothing", "such as 90s"))
        return None
    return seconds


def _trust(access: Access, issues: list[Issue]) -> bool | str:
    if access.insecure and access.verify is not None:
        issues.append(Issue("--insecure", "is given beside --verify: leave one of the two out"))
    if access.verify == "first-use":
        issues.append(
            Issue("--verify", "first-use needs an agent that remembers the certificate", "pin it with sha256:<hex>")
        )
        return True
    if access.insecure or access.verify is None:
        return not access.insecure
    try:
        TlsPolicy.parse(access.verify)
    except ValueError as error:
        issues.append(Issue("--verify", str(error)))
        return True
    return access.verify


def _password(access: Access, issues: list[Issue]) -> Secret | None:
    """From a file, from standard input, or typed in; never from the command line, which others can read."""
    file = access.password_file
    if file is None and access.user is not None and not access.password_stdin:
        file = os.environ.get(CREDENTIAL_FILE_VARIABLE)
    given = [
        name
        for name, value in (("--password-file", access.password_file), ("--password-stdin", access.password_stdin))
        if value
    ]
    if len(given) > 1:
        issues.append(Issue("--password-stdin", "is given beside --password-file: leave one of the two out"))
        return None
    if given and access.user is None:
        issues.append(Issue("--user", f"is required with {given[0]}"))
        return None
    if file is not None:
        return password_from(file, issues)
    if access.password_stdin:
        try:
            text = sys.stdin.read(_MAX_PASSWORD_LENGTH + 1)
        except UnicodeDecodeError:
            issues.append(Issue("--password-stdin", "is not UTF-8 text"))
            return None
        return _line(text, "--password-stdin", issues)
    if access.user is None:
        return None
    if not sys.stdin.isatty():
        issues.append(
            Issue(
                "--user", "needs a password", f"give --password-file, --password-stdin or {CREDENTIAL_FILE_VARIABLE}"
            )
        )
        return None
    if issues:
        # Nobody should type a password for a command line that is refused anyway.
        return None
    return Secret(click.prompt(f"Password of {access.user}", hide_input=True, err=True))


def password_from(file: str, issues: list[Issue], option: str = "--password-file") -> Secret | None:
    """A password of one line. What is wrong goes to `issues`, under the name of the option."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_MAX_PASSWORD_LENGTH + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        issues.append(Issue(option, f"{file}: {reason}"))
        return None
    if stat.S_ISREG(mode) and mode & 0o077:
        click.echo(f"warning: {file} is readable by others: chmod 600 {file}", err=True)
    return _line(text, option, issues)


def _line(text: str, option: str, issues: list[Issue]) -> Secret | None:
    """One line's text; the line's end is not a part of the password."""
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        issues.append(Issue(option, "must give the password alone, on one line"))
        return None
    if any("\ud800" <= mark <= "\udfff" for mark in password):
        # So Python keeps the bytes of standard input that are no UTF-8.
        issues.append(Issue(option, "is not UTF-8 text"))
        return None
    if len(text) > _MAX_PASSWORD_LENGTH:
        issues.append(Issue(option, f"gives more than {_MAX_PASSWORD_LENGTH} characters: is it the right file?"))
        return None
    return Secret(password)
