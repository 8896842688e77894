"""The login of a simulated BMC for which nobody chose one; whoever starts it is told."""

from pathlib import Path

import click

__all__ = ["DEFAULT_PASSWORD", "DEFAULT_USER", "hint", "read_password"]

DEFAULT_USER = "admin"
DEFAULT_PASSWORD = "Tamarin-4xq7-Vo"  # noqa: S105 - known to everybody
"""No word of any ordinary text, so that it can be masked wherever it shows up. Short enough for IPMI 1.5."""


def read_password(file: Path | None) -> str:
    """The first line of a password file; the default where there is none. ClickException where it is empty."""
    if file is None:
        return DEFAULT_PASSWORD
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {error}: give a readable file with the password") from error
    if not lines or not lines[0]:
        raise click.ClickException(f"{file} is empty: write the password into its first line.")
    return lines[0]


def hint(user: str, password: str) -> str:
    """What is printed of a login: a password that somebody chose is not shown."""
    return f"login {user}, password {password}" if password == DEFAULT_PASSWORD else f"login {user}"
