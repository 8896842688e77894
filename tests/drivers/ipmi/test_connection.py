"""What is sent again, what is not, and how a session begins, is lost and ends."""

import asyncio
import contextlib

import pytest

from drivers import Drivers, Target
from protocol.errors import ErrorCode, OperationError
from simulators.ipmi.faults import Phase
from tests.drivers.ipmi.conftest import PASSWORD, USER, Site, free_port

STATUS = (0x00, 0x01)
CONTROL = (0x00, 0x02)


async def test_a_warm_get_power_is_exactly_one_command(site: Site) -> None:
    await site.invoke("power.getPower")
    before = len(site.bmc.journal)
    await site.invoke("power.getPower")
    entries = list(site.bmc.journal)[before:]
    assert [(entry.netfn, entry.cmd) for entry in entries] == [STATUS]


async def test_one_session_serves_every_caller_one_command_at_a_time(site: Site) -> None:
    results = await asyncio.gather(*(site.invoke("power.getPower") for _ in range(20)))
    assert {result["state"] for result in results} == {"on"}
    assert len(site.bmc.sessions.active()) == 1
    assert len(site.asked(*STATUS)) == 20


@pytest.mark.parametrize("effect", ["drop", "drop_answer"])
async def test_a_read_whose_packet_is_lost_is_sent_again(site: Site, hasty: None, effect: str) -> None:
    await site.invoke("power.getPower")
    site.fault(netfn=0, cmd=1, count=1, **{effect: True})
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert site.logins() == 1


@pytest.mark.parametrize("effect", [{"garbage": "0600ff0706"}, {"wrong_sequence": True}, {"replay_sequence": True}])
async def test_a_strange_answer_is_ignored_and_the_read_is_sent_again(
    site: Site, hasty: None, effect: dict[str, object]
) -> None:
    await site.invoke("power.getPower")
    site.fault(netfn=0, cmd=1, count=1, **effect)
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert site.logins() == 1


async def test_a_late_answer_is_not_taken_for_the_next_commands_answer(site: Site, hasty: None) -> None:
    site.fault(netfn=0, cmd=1, late=0.08, count=1)
    first = await site.invoke("power.getPower")
    site.bmc.machine.powered = False
    assert (first["state"], (await site.invoke("power.getPower"))["state"]) == ("on", "off")


async def test_doubled_answers_do_no_harm(site: Site) -> None:
    site.fault(duplicate=2)
    for _ in range(5):
        assert (await site.invoke("power.getPower"))["state"] == "on"


@pytest.mark.parametrize("code", [0xC0, 0xC3, 0xC4, 0xD2])
async def test_a_busy_bmc_is_asked_again_within_the_deadline(site: Site, hasty: None, code: int) -> None:
    site.fault(netfn=0, cmd=1, completion_code=code, count=3)
    assert (await site.invoke("power.getPower"))["state"] == "on"


async def test_a_bmc_that_stays_busy_is_reported_with_its_own_words(site: Site, hasty: None) -> None:
    site.fault(netfn=0, cmd=1, completion_code=0xC0)
    error = await site.refused("power.getPower", timeout=0.2)
    assert error.code is ErrorCode.BUSY
    assert [(m.id, m.text) for m in error.bmc] == [("0xc0", "node busy")]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0xC1, ErrorCode.UNSUPPORTED),
        (0xCC, ErrorCode.INVALID_ARGUMENT),
        (0xCD, ErrorCode.UNSUPPORTED),
        (0xD4, ErrorCode.AUTH_FAILED),
        (0xD5, ErrorCode.CONFLICT),
        (0xFF, ErrorCode.BMC_ERROR),
        (0x99, ErrorCode.BMC_ERROR),
    ],
)
async def test_a_refusal_is_typed_and_keeps_the_bmcs_code(site: Site, code: int, kind: ErrorCode) -> None:
    site.fault(netfn=0, cmd=1, completion_code=code)
    error = await site.refused("power.getPower")
    assert error.code is kind
    assert error.bmc[0].id == f"{code:#04x}"
    assert "Get Chassis Status" in error.message


async def test_a_session_that_the_bmc_lost_costs_a_read_one_new_login(site: Site, hasty: None) -> None:
    await site.invoke("power.getPower")
    site.bmc.restart(silent_seconds=0)
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert site.logins() == 2


async def test_an_act_in_a_session_that_the_bmc_lost_is_sent_once_in_a_new_one(site: Site, hasty: None) -> None:
    await site.invoke("power.getPower")
    site.bmc.restart(silent_seconds=0)
    await site.invoke("power.setPower", action="reset")
    assert len(site.asked(*CONTROL)) == 1
    assert site.logins() == 2


async def test_a_bmc_that_falls_silent_after_the_login_is_unreachable_with_the_command_named(
    site: Site, hasty: None
) -> None:
    site.fault(netfn=0, cmd=1, drop=True)
    error = await site.refused("power.getPower")
    assert error.code is ErrorCode.UNREACHABLE
    assert "Get Chassis Status" in error.message


async def test_an_idle_session_is_closed_and_the_next_command_opens_a_new_one(site: Site) -> None:
    driver = await site.drivers.driver_for(site.target)
    connection = site.drivers.connections.get(driver, site.target)
    connection.idle_seconds = 0.05  # type: ignore[attr-defined]
    await site.invoke("power.getPower")
    closed = await site.server.seen(lambda entry: (entry.netfn, entry.cmd) == (0x06, 0x3C))
    assert closed.executed
    assert (await site.invoke("power.getPower"))["state"] == "on"
    assert site.logins() == 2


async def test_a_session_in_use_is_not_closed_as_idle(site: Site) -> None:
    driver = await site.drivers.driver_for(site.target)
    connection = site.drivers.connections.get(driver, site.target)
    connection.idle_seconds = 0.01  # type: ignore[attr-defined]
    site.fault(netfn=0, cmd=1, delay=0.1)
    await asyncio.gather(*(site.invoke("power.getPower") for _ in range(4)))
    assert site.logins() == 1


async def test_closing_never_fails_though_the_bmc_is_gone(site: Site, hasty: None) -> None:
    await site.invoke("power.getPower")
    site.bmc.restart(silent_seconds=60)
    await site.drivers.aclose()
    await site.drivers.aclose()


async def test_a_cancelled_call_leaves_the_connection_usable(site: Site) -> None:
    site.fault(Phase.RAKP_1, late=30.0, count=1)
    waiting = asyncio.create_task(site.invoke("power.getPower"))
    await site.server.seen(lambda entry: entry.phase is Phase.RAKP_1)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    site.fault(netfn=6, cmd=0x3B, late=30.0, count=1)
    again = asyncio.create_task(site.invoke("power.getPower"))
    await site.server.seen(lambda entry: (entry.netfn, entry.cmd) == (0x06, 0x3B))
    again.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await again
    assert (await site.invoke("power.setPower", action="off"))["state"] == "off"


async def test_a_black_hole_is_unreachable_within_seconds_and_says_what_to_check(hasty: None) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    error = await _refused(f"ipmi://127.0.0.1:{port}")
    transport.close()
    assert error.code is ErrorCode.UNREACHABLE
    assert "Get Channel Authentication Capabilities" in error.message
    assert error.code.retryable


def test_a_black_hole_is_given_up_after_six_seconds() -> None:
    from drivers.ipmi import login

    assert sum(login.TRIES) == 6.0


async def test_a_refused_port_is_reported_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivers.ipmi.login.TRIES", (3600.0,))
    error = await _refused(f"ipmi://127.0.0.1:{free_port()}")
    assert error.code is ErrorCode.UNREACHABLE
    assert "refused" in error.message.lower()


async def test_a_name_that_cannot_be_resolved_is_named() -> None:
    error = await _refused("ipmi://no-such-bmc.invalid")
    assert error.code is ErrorCode.UNREACHABLE
    assert "no-such-bmc.invalid cannot be resolved" in error.message


async def test_the_password_appears_in_no_error_log_or_packet_in_clear(
    site: Site, hasty: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    site.fault(Phase.RAKP_3, status=0x0F)
    error = await site.refused("power.getPower")
    told = f"{error!r} {error.details} {error.bmc} {caplog.text} {site.bmc.journal!r} {list(site.bmc.journal)}"
    assert PASSWORD not in told
    assert PASSWORD.encode().hex() not in told


async def _refused(address: str) -> OperationError:
    async with Drivers() as drivers:
        with pytest.raises(OperationError) as caught:
            await drivers.invoke(Target(address=address, username=USER, password=PASSWORD), "power.getPower")
        return caught.value
