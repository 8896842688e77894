"""Command lines are told apart by their prompts."""

import re

import pytest

from drivers.ssh.shells import SHELLS, Shell, last_line, shell_at


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("iLO 5 Advanced 2.44\r\n\r\n</>hpiLO-> ", "HPE iLO"),
        ("racadm>>", "Dell iDRAC"),
        ("Warning\r\n/admin1-> ", "Dell iDRAC"),
        ("system> ", "Lenovo XCC"),
        ("Insyde SMASH-CLP System Management Shell\r\n\r\n-> ", "Supermicro SMASH"),
        ("\x1b[0;32mroot@romulus\x1b[0m:~# ", "OpenBMC"),
        ("\x1b]0;root@bmc\x07root@bmc:~$ ", "OpenBMC"),
    ],
)
def test_the_prompt_tells_the_kind(text: str, who: str) -> None:
    found = shell_at(text)
    assert found is not None
    assert found.who == who


@pytest.mark.parametrize("text", ["", "login: ", "Password:", "system> help\r\n", "switch>", "-> help\r\nmore"])
def test_what_shows_no_known_prompt_is_of_no_kind(text: str) -> None:
    assert shell_at(text) is None


def test_the_last_line_is_the_prompt() -> None:
    assert last_line("a\r\nb\r\n\x1b[1m</>hpiLO-> ") == "</>hpiLO->"
    assert last_line("done\r\n") == ""


@pytest.mark.parametrize("shell", SHELLS, ids=[shell.who for shell in SHELLS])
def test_each_row_is_whole(shell: Shell) -> None:
    for pattern in (shell.prompt, shell.started or "x", shell.held, shell.unknown):
        re.compile(pattern)
    assert shell.enter
    assert shell.leave
    assert shell.source
    assert not (shell.other_enter and shell.unknown == r"(?!)")


def test_escapes_that_never_end_are_no_endless_work() -> None:
    for begun in ("\x1b]", "\x1b[0", "\x1b]0;a"):
        assert shell_at(begun * 30_000) is None
