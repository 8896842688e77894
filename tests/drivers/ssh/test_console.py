"""The SSH console against BMCs that are not there: vendors' command lines, logins, host keys, cut connections."""

import asyncio
import io
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import paramiko
import pytest

from drivers import Drivers, Target
from drivers.console import ConsoleStream
from drivers.ssh.login import _connect
from protocol.console_frames import EndReason
from protocol.errors import ErrorCode, OperationError
from tests.drivers.ssh.vendor_bmc import PASSWORD, USER, CommandLine, VendorBmc

ILO = CommandLine(
    "User:admin logged-in to ILO.example(192.0.2.7)\r\niLO 5 Advanced 2.44\r\nServer Power: On\r\n",
    "</>hpiLO-> ",
    opens={
        "vsp": "\r\nVirtual Serial Port Active: COM2\r\n\r\nStarting virtual serial port.\r\n"
        "Press 'ESC (' to return to the CLI Session.\r\n"
    },
    answers={"stop /system1/oemhp_vsp1": "status=0\r\nstatus_tag=COMMAND COMPLETED"},
    leave=b"\x1b(",
)
IDRAC = CommandLine(
    "",
    "racadm>>",
    opens={"console com2": "\r\nConnected to Serial Device 2. To end type: ^\\\r\n"},
    leave=b"\x1c",
)
OLD_IDRAC = CommandLine(
    "",
    "/admin1-> ",
    opens={"connect com2": "\r\nConnected to Serial Device 2. To end type: ^\\\r\n"},
    otherwise="ERROR: Invalid command",
    leave=b"\x1c",
)
XCC = CommandLine("", "system> ", opens={"console 1": ""}, answers={"console kill 1": "ok"}, leave=b"\x1b(")
NEW_XCC = CommandLine(
    "",
    "system> ",
    opens={"console start": ""},
    answers={
        "console kill 1": "The command line contains extraneous arguments",
        "console 1": "The command line contains extraneous arguments",
        "console kill": "Session on channel 1 is terminated",
    },
    leave=b"\x1b(",
)
SMASH = CommandLine(
    "Insyde SMASH-CLP System Management Shell, versions\r\nAll Rights Reserved\r\n\r\n",
    "-> ",
    opens={
        "start": "/system1/sol1\r\n\r\npress <Enter>, <Esc>, and then <T> to terminate session\r\n"
        "(press the keys in sequence, one after the other)\r\n"
    },
    answers={"cd system1/sol1": "/system1/sol1\r\n"},
    leave=b"\r\x1bT",
)
OPENBMC = CommandLine("", "root@romulus:~# ", opens={"obmc-console-client": ""}, leave=b"\r~.")
VENDORS = {
    "iLO": (ILO, ["vsp"]),
    "iDRAC": (IDRAC, ["console com2"]),
    "old iDRAC": (OLD_IDRAC, ["console com2", "connect com2"]),
    "XCC": (XCC, ["console 1"]),
    "new XCC": (NEW_XCC, ["console 1", "console start"]),
    "SMASH": (SMASH, ["cd system1/sol1", "start"]),
    "OpenBMC": (OPENBMC, ["obmc-console-client"]),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is taken for an answer sooner."""
    monkeypatch.setattr("drivers.ssh.dialogue._QUIET_SECONDS", 0.4)
    monkeypatch.setattr("drivers.ssh.dialogue._PROMPT_SECONDS", 1.0)
    monkeypatch.setattr("drivers.ssh.dialogue._STARTED_SECONDS", 2.0)


@pytest.fixture
async def drivers() -> AsyncIterator[Drivers]:
    async with Drivers() as drivers:
        yield drivers


@pytest.fixture
def bmc() -> Iterator[VendorBmc]:
    with VendorBmc(ILO) as bmc:
        yield bmc


def target(bmc: VendorBmc, **more: object) -> Target:
    settings: dict[str, object] = {"username": USER, "password": PASSWORD, "verify": "first-use", **more}
    return Target(address=bmc.address, **settings)  # type: ignore[arg-type]


async def opened(drivers: Drivers, bmc: VendorBmc, **arguments: object) -> ConsoleStream:
    result = await drivers.invoke(target(bmc), "console.openConsole", arguments)
    stream = drivers.environment.consoles.get(str(result["stream"]))
    assert stream is not None
    return stream


async def refused(drivers: Drivers, at: Target, **arguments: object) -> OperationError:
    with pytest.raises(OperationError) as caught:
        await drivers.invoke(at, "console.openConsole", arguments)
    assert PASSWORD not in str(caught.value)
    return caught.value


async def heard(stream: ConsoleStream, expected: bytes) -> None:
    read = b""
    while len(read) < len(expected):
        data = await stream.read()
        assert data, (read, stream.ending)
        read += data
    assert read == expected


async def all_closed(bmc: VendorBmc) -> None:
    """Until the BMC has seen every connection end."""
    while bmc.connections:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_each_vendors_console_is_opened_used_and_left(vendor: str, drivers: Drivers, quick: None) -> None:
    line, commands = VENDORS[vendor]
    with VendorBmc(line) as bmc:
        stream = await opened(drivers, bmc)
        assert bmc.commands == commands
        await stream.write(b"root\r")
        await heard(stream, b"root\r")
        await stream.aclose()
        assert await asyncio.to_thread(bmc.left.wait, 10)


@pytest.mark.parametrize(
    ("vendor", "released"),
    [
        ("iLO", ["stop /system1/oemhp_vsp1"]),
        ("XCC", ["console kill 1"]),
        ("new XCC", ["console kill 1", "console kill"]),
    ],
)
async def test_another_session_is_ended_where_the_console_may_be_taken_over(
    vendor: str, released: list[str], drivers: Drivers, quick: None
) -> None:
    line, commands = VENDORS[vendor]
    with VendorBmc(line) as bmc:
        stream = await opened(drivers, bmc, takeOver=True)
        assert bmc.commands == [*released, *commands]
        await stream.write(b"x")
        await heard(stream, b"x")


async def test_a_console_in_use_is_a_conflict_in_the_bmcs_own_words(drivers: Drivers, quick: None) -> None:
    with VendorBmc(ILO) as bmc:
        bmc.on_command = lambda command: (
            "Virtual Serial Port is currently in use by another session." if command == "vsp" else None
        )
        error = await refused(drivers, target(bmc))
        assert error.code is ErrorCode.CONFLICT
        assert "take it over" in error.message
        assert "in use by another session" in error.bmc[0].text
        await all_closed(bmc)


async def test_a_command_that_a_command_line_does_not_know_is_told(drivers: Drivers, quick: None) -> None:
    with VendorBmc(CommandLine("", "system> ", otherwise="Invalid command")) as bmc:
        error = await refused(drivers, target(bmc))
        assert error.code is ErrorCode.UNSUPPORTED
        assert "Lenovo XCC" in error.message
        assert "Invalid command" in error.bmc[0].text


async def test_an_unknown_command_line_says_what_to_give(drivers: Drivers, quick: None) -> None:
    with VendorBmc(CommandLine("ACME Supervisor 1.0", "acme)")) as bmc:
        error = await refused(drivers, target(bmc))
        assert error.code is ErrorCode.UNSUPPORTED
        assert "command=" in error.message
        assert "ACME Supervisor" in error.bmc[0].text


async def test_the_command_that_is_given_opens_the_console(bmc: VendorBmc, drivers: Drivers) -> None:
    stream = await opened(drivers, bmc, command="connect host serial")
    await stream.write(b"x")
    await heard(stream, b"x")
    assert bmc.commands == ["connect host serial"]


async def test_openbmcs_console_port_needs_no_command(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    with VendorBmc(straight=True) as bmc:
        monkeypatch.setattr("drivers.ssh.console.STRAIGHT_PORT", bmc.port)
        stream = await opened(drivers, bmc)
        await stream.write(b"x")
        await heard(stream, b"x")
        options = await drivers.invoke(target(bmc), "console.getConsole")
        assert options["kinds"] == ["ssh"]


async def test_a_wrong_password_is_refused_once_and_then_blocked(bmc: VendorBmc, drivers: Drivers) -> None:
    for expected in (ErrorCode.AUTH_FAILED, ErrorCode.AUTH_BLOCKED):
        assert (await refused(drivers, target(bmc, password="wrong"))).code is expected
    assert len(bmc.logins) == 1


async def test_a_password_may_be_asked_for_interactively(bmc: VendorBmc, drivers: Drivers) -> None:
    bmc.methods = "keyboard-interactive"
    await opened(drivers, bmc)
    assert bmc.logins == [(USER, "keyboard-interactive")]


async def test_a_server_that_takes_no_password_is_told_and_blocks_nothing(bmc: VendorBmc, drivers: Drivers) -> None:
    bmc.methods = "publickey"
    for _ in range(2):
        error = await refused(drivers, target(bmc))
        assert error.code is ErrorCode.UNSUPPORTED
        assert "only: publickey" in error.message


@pytest.mark.parametrize("kind", ["ecdsa", "rsa", "ed25519"])
async def test_a_credential_that_is_a_private_key_logs_in_with_it(
    kind: str, bmc: VendorBmc, drivers: Drivers
) -> None:
    pem, public = _key(kind)
    bmc.user_keys = [public]
    result = await drivers.invoke(target(bmc, password=pem), "console.openConsole")
    assert result["stream"]
    assert bmc.logins[-1] == (USER, "publickey")
    assert (await refused(drivers, target(bmc, password=_key("ecdsa")[0]))).code is ErrorCode.AUTH_FAILED


async def test_a_private_key_that_cannot_be_read_is_never_shown(bmc: VendorBmc, drivers: Drivers) -> None:
    garbage = "-----BEGIN OPENSSH PRIVATE KEY-----\nplantedgarbage\n-----END OPENSSH PRIVATE KEY-----\n"
    error = await refused(drivers, target(bmc, password=garbage))
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert "plantedgarbage" not in str(error)


async def test_the_host_key_is_pinned_on_first_use(bmc: VendorBmc, drivers: Drivers) -> None:
    async with drivers.turn(target(bmc), "console.openConsole", {}) as turn:
        reply = await turn.run({})
    assert reply.observed == {"hostKeyFingerprint": bmc.fingerprint}
    assert drivers.environment.pins == {f"127.0.0.1:{bmc.port}": bmc.fingerprint}
    bmc.key = paramiko.ECDSAKey.generate()
    logins = len(bmc.logins)
    assert (await refused(drivers, target(bmc))).code is ErrorCode.TLS_UNTRUSTED
    assert len(bmc.logins) == logins, "no password is shown to a stranger"


async def test_a_host_key_that_nobody_vouches_for_is_refused(bmc: VendorBmc, drivers: Drivers) -> None:
    error = await refused(drivers, target(bmc, verify=True))
    assert error.code is ErrorCode.TLS_UNTRUSTED
    assert bmc.fingerprint in error.message
    assert (await drivers.invoke(target(bmc, verify=f"sha256:{bmc.fingerprint}"), "console.openConsole"))["stream"]


async def test_a_connection_that_breaks_is_lost_and_one_that_is_closed_has_ended(
    bmc: VendorBmc, drivers: Drivers
) -> None:
    stream = await opened(drivers, bmc)
    await stream.write(b"x")
    await heard(stream, b"x")
    reading = asyncio.create_task(stream.read())
    await asyncio.to_thread(bmc.cut)
    assert await reading == b""
    assert stream.ending is not None
    assert stream.ending.reason is EndReason.LOST
    with pytest.raises(OperationError) as caught:
        await stream.write(b"x")
    assert caught.value.code is ErrorCode.INTERRUPTED


async def test_reading_may_be_given_up_without_loss(bmc: VendorBmc, drivers: Drivers) -> None:
    stream = await opened(drivers, bmc)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stream.read()
    await stream.write(b"still here")
    await heard(stream, b"still here")


async def test_closing_while_a_task_reads_ends_it(bmc: VendorBmc, drivers: Drivers) -> None:
    stream = await opened(drivers, bmc)
    reading = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    await stream.aclose()
    await stream.aclose()
    await reading
    assert stream.ending is not None
    assert stream.ending.reason is EndReason.CLOSED


async def test_a_host_that_speaks_no_ssh_is_unreachable(drivers: Drivers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=_speak_http, args=(listener,), daemon=True)
        thread.start()
        at = Target(address=f"ssh://127.0.0.1:{port}", username=USER, password=PASSWORD, verify="none")
        assert (await refused(drivers, at)).code is ErrorCode.UNREACHABLE
        thread.join(10)
    assert (await refused(drivers, at)).code is ErrorCode.UNREACHABLE


async def test_no_terminal_is_a_fault_in_words(bmc: VendorBmc, drivers: Drivers) -> None:
    bmc.gives_terminal = False
    error = await refused(drivers, target(bmc))
    assert error.code is ErrorCode.BMC_ERROR
    await all_closed(bmc)


async def test_a_login_that_nobody_waits_for_any_more_is_closed(
    bmc: VendorBmc, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: object) -> object:
        begun.set()
        go_on.wait(10)
        return _connect(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("drivers.ssh.login._connect", slow)
    opening = asyncio.create_task(drivers.invoke(target(bmc), "console.openConsole"))
    await asyncio.to_thread(begun.wait, 10)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    go_on.set()
    while not bmc.met or bmc.connections:
        await asyncio.sleep(0.01)
    assert bmc.logins == []


async def test_the_ssh_driver_has_a_console_and_nothing_else(bmc: VendorBmc, drivers: Drivers) -> None:
    with pytest.raises(OperationError) as caught:
        await drivers.invoke(target(bmc), "power.getPower")
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert (await refused(drivers, target(bmc), kind="sol")).code is ErrorCode.UNSUPPORTED


def _key(kind: str) -> tuple[str, bytes]:
    """A private key in PEM, and its public half."""
    if kind == "ed25519":
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        pem = (
            Ed25519PrivateKey.generate()
            .private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
            .decode()
        )
        return pem, paramiko.Ed25519Key.from_private_key(io.StringIO(pem)).asbytes()
    made = paramiko.ECDSAKey.generate() if kind == "ecdsa" else paramiko.RSAKey.generate(2048)
    text = io.StringIO()
    made.write_private_key(text)
    return text.getvalue(), made.asbytes()


def _speak_http(listener: socket.socket) -> None:
    connected, _ = listener.accept()
    connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connected.close()
