"""Power: what converges looks first, what is an act is sent exactly once."""

import pytest

from protocol.errors import ErrorCode
from simulators.ipmi.constants import ChassisControl
from simulators.ipmi.machine import PowerTiming
from tests.drivers.ipmi.conftest import Site, StartSite

CONTROL = (0x00, 0x02)
ACTS = {
    "reset": ChassisControl.HARD_RESET,
    "cycle": ChassisControl.POWER_CYCLE,
    "nmi": ChassisControl.DIAGNOSTIC_INTERRUPT,
}


async def set_power(site: Site, action: str, timeout: float = 20.0, **more: object) -> dict[str, object]:
    return await site.invoke("power.setPower", timeout, action=action, **more)


@pytest.mark.parametrize("powered", [True, False])
async def test_the_state_is_read(start_site: StartSite, powered: bool) -> None:
    site = await start_site(powered=powered)
    assert (await site.invoke("power.getPower"))["state"] == ("on" if powered else "off")


@pytest.mark.parametrize(("powered", "action"), [(True, "on"), (False, "off"), (False, "softOff")])
async def test_what_is_so_already_sends_nothing(start_site: StartSite, powered: bool, action: str) -> None:
    site = await start_site(powered=powered)
    result = await set_power(site, action)
    assert (result["changed"], result["verbUsed"]) == (False, None)
    assert site.asked(*CONTROL) == []


async def test_on_waits_until_the_bmc_reports_it(start_site: StartSite, hasty: None) -> None:
    site = await start_site(powered=False, timing=PowerTiming(power_on=0.2))
    assert await set_power(site, "on") == {"state": "on", "changed": True, "verbUsed": "power up", "forced": False}
    assert site.bmc.machine.is_on


async def test_without_waiting_on_and_off_return_at_once_with_the_way_it_goes(start_site: StartSite) -> None:
    site = await start_site(powered=False, timing=PowerTiming(power_on=60, power_off=60))
    assert (await set_power(site, "on", wait=False))["state"] == "poweringOn"
    site.bmc.machine.powered = True
    assert (await set_power(site, "off", wait=False))["state"] == "poweringOff"


async def test_a_state_that_never_comes_is_not_applied(start_site: StartSite, hasty: None) -> None:
    site = await start_site(powered=False, timing=PowerTiming(power_on=60))
    error = await site.refused("power.setPower", timeout=1.5, action="on")
    assert error.code is ErrorCode.NOT_APPLIED
    assert "still reads off" in error.message


@pytest.mark.parametrize("action", ACTS)
async def test_an_act_is_sent_once_and_reported(site: Site, action: str) -> None:
    result = await set_power(site, action)
    assert (result["state"], result["changed"]) == ("on", True)
    assert site.bmc.machine.count(ACTS[action]) == 1


@pytest.mark.parametrize("action", ACTS)
@pytest.mark.parametrize("effect", ["drop", "drop_answer"])
async def test_an_act_without_an_answer_is_sent_exactly_once_and_its_outcome_is_unknown(
    site: Site, hasty: None, action: str, effect: str
) -> None:
    site.fault(netfn=0, cmd=2, **{effect: True})
    error = await site.refused("power.setPower", action=action)
    assert error.code is ErrorCode.OUTCOME_UNKNOWN
    assert "sent" in error.message
    assert len(site.asked(*CONTROL)) == 1


@pytest.mark.parametrize("action", ACTS)
async def test_an_act_whose_answer_is_late_is_sent_exactly_once(site: Site, action: str) -> None:
    site.fault(netfn=0, cmd=2, late=1.2)
    assert (await set_power(site, action))["changed"] is True
    assert site.bmc.machine.count(ACTS[action]) == 1


@pytest.mark.parametrize("action", ACTS)
@pytest.mark.parametrize(("code", "kind"), [(0xC0, ErrorCode.BUSY), (0xC3, ErrorCode.OUTCOME_UNKNOWN)])
async def test_an_act_that_the_bmc_refuses_for_now_is_not_sent_again(
    site: Site, action: str, code: int, kind: ErrorCode
) -> None:
    site.fault(netfn=0, cmd=2, completion_code=code)
    assert (await site.refused("power.setPower", action=action)).code is kind
    assert len(site.asked(*CONTROL)) == 1


@pytest.mark.parametrize(("action", "ends"), [("on", "on"), ("off", "off")])
async def test_a_lost_answer_to_on_or_off_is_settled_by_looking(
    start_site: StartSite, hasty: None, action: str, ends: str
) -> None:
    site = await start_site(powered=action == "off")
    site.fault(netfn=0, cmd=2, drop_answer=True)
    assert (await set_power(site, action))["state"] == ends
    assert len(site.asked(*CONTROL)) == 1


async def test_a_lost_order_to_power_on_is_sent_a_second_time_once_the_machine_is_seen_off(
    start_site: StartSite, hasty: None
) -> None:
    site = await start_site(powered=False)
    site.fault(netfn=0, cmd=2, drop=True, count=1)
    assert (await set_power(site, "on"))["state"] == "on"
    assert len(site.asked(*CONTROL)) == 2


@pytest.mark.parametrize("action", ["reset", "nmi"])
async def test_reset_and_interrupt_of_a_machine_that_is_off_are_a_conflict_and_not_sent(
    start_site: StartSite, action: str
) -> None:
    site = await start_site(powered=False)
    assert (await site.refused("power.setPower", action=action)).code is ErrorCode.CONFLICT
    assert site.asked(*CONTROL) == []


async def test_cycle_of_a_machine_that_is_off_powers_it_on(start_site: StartSite) -> None:
    site = await start_site(powered=False)
    result = await set_power(site, "cycle")
    assert (result["state"], result["verbUsed"]) == ("on", "power up")
    assert site.bmc.machine.count(ChassisControl.POWER_CYCLE) == 0


async def test_cycle_of_a_machine_that_went_off_meanwhile_powers_it_on(site: Site) -> None:
    site.fault(netfn=0, cmd=2, data="02", completion_code=0xD5)
    await site.invoke("power.getPower")
    # The look finds it on; the order then meets a machine that is off.
    site.bmc.journal.on_entry.append(
        lambda entry: setattr(site.bmc.machine, "powered", False) if (entry.netfn, entry.cmd) == CONTROL else None
    )
    result = await set_power(site, "cycle", wait=False)
    assert result["verbUsed"] == "power up"


@pytest.mark.parametrize("code", [0xC1, 0xCC])
async def test_cycle_on_a_bmc_without_it_is_off_then_on(site: Site, hasty: None, code: int) -> None:
    site.fault(netfn=0, cmd=2, data="02", completion_code=code)
    result = await set_power(site, "cycle")
    assert (result["state"], result["verbUsed"]) == ("on", "power up")
    orders = [order.action for order in site.bmc.machine.orders]
    assert orders == [ChassisControl.POWER_DOWN, ChassisControl.POWER_UP]


async def test_soft_off_asks_the_operating_system(start_site: StartSite, hasty: None) -> None:
    site = await start_site(timing=PowerTiming(soft_shutdown=0.1))
    result = await set_power(site, "softOff")
    assert (result["state"], result["forced"], result["verbUsed"]) == ("off", False, "soft shutdown")


async def test_soft_off_that_nobody_heeds_ends_with_the_power_cut(start_site: StartSite, hasty: None) -> None:
    site = await start_site(timing=PowerTiming(soft_shutdown=None))
    result = await set_power(site, "softOff", softTimeout=0.2)
    assert (result["state"], result["forced"], result["verbUsed"]) == ("off", True, "power down")
    orders = [order.action for order in site.bmc.machine.orders]
    assert orders == [ChassisControl.SOFT_SHUTDOWN, ChassisControl.POWER_DOWN]


async def test_soft_off_never_cuts_the_power_before_its_time(start_site: StartSite, hasty: None) -> None:
    site = await start_site(timing=PowerTiming(soft_shutdown=None))
    error = await site.refused("power.setPower", timeout=1.3, action="softOff", softTimeout=60)
    assert error.code is ErrorCode.TIMEOUT
    assert "the power was not cut" in error.message
    assert site.bmc.machine.is_on


async def test_soft_off_without_waiting_forces_nothing(start_site: StartSite) -> None:
    site = await start_site(timing=PowerTiming(soft_shutdown=None))
    assert (await set_power(site, "softOff", wait=False))["state"] == "poweringOff"
    assert site.bmc.machine.is_on


async def test_a_bmc_without_soft_shutdown_says_so_and_cuts_nothing(site: Site) -> None:
    site.fault(netfn=0, cmd=2, data="05", completion_code=0xCC)
    error = await site.refused("power.setPower", action="softOff")
    assert error.code is ErrorCode.UNSUPPORTED
    assert "soft shutdown" in error.message
    assert site.bmc.machine.is_on


async def test_a_failing_look_after_an_act_does_not_make_it_look_failed(site: Site, hasty: None) -> None:
    site.fault(netfn=0, cmd=1, after=1, completion_code=0xFF)
    assert (await set_power(site, "reset"))["state"] == "unknown"
