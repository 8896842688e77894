"""The power of a simulated machine: what each reset leads to, how long it takes, and what is refused."""

import pytest

from simulators.redfish import PowerState, ServiceOptions
from simulators.redfish.power import TRANSITIONS, ResetType
from tests.simulators.conftest import RESET, SYSTEM, FakeClock, Start


@pytest.mark.parametrize(
    ("before", "reset_type", "after", "boots"),
    [
        ("Off", "On", "On", 1),
        ("Off", "ForceOff", "Off", 0),
        ("Off", "PushPowerButton", "On", 1),
        ("On", "On", "On", 0),
        ("On", "ForceOff", "Off", 0),
        ("On", "GracefulShutdown", "Off", 0),
        ("On", "ForceRestart", "On", 1),
        ("On", "GracefulRestart", "On", 1),
        ("On", "PowerCycle", "On", 1),
        ("On", "PushPowerButton", "Off", 0),
        ("On", "Nmi", "On", 0),
    ],
)
async def test_each_reset_type_leads_to_its_state(
    start: Start, before: str, reset_type: str, after: str, boots: int
) -> None:
    bmc = await start()
    bmc.server.state.set_power(before)

    reply = await bmc.reset(reset_type)

    assert reply.status == 204
    assert (await bmc.get(SYSTEM)).data["PowerState"] == after
    assert len(bmc.server.state.boots) == boots
    assert [(reset.reset_type, reset.power_before) for reset in bmc.server.state.resets] == [(reset_type, before)]


@pytest.mark.parametrize("reset_type", ["ForceRestart", "GracefulRestart", "PowerCycle", "Nmi"])
async def test_a_reset_that_needs_a_running_machine_is_refused_while_it_is_off(start: Start, reset_type: str) -> None:
    bmc = await start()
    bmc.server.state.set_power("Off")

    reply = await bmc.reset(reset_type)

    assert reply.status == 409
    assert reply.message_ids == ["ActionParameterValueConflict"]
    assert bmc.server.state.resets == []
    assert bmc.server.state.power() is PowerState.OFF


async def test_power_on_takes_its_time_and_shows_it(start: Start, clock: FakeClock) -> None:
    bmc = await start(options=ServiceOptions(power_on_seconds=30), clock=clock)
    bmc.server.state.set_power("Off")

    await bmc.reset("On")
    assert (await bmc.get(SYSTEM)).data["PowerState"] == "PoweringOn"
    clock.move(29)
    assert (await bmc.get(SYSTEM)).data["PowerState"] == "PoweringOn"
    assert bmc.server.state.boots == []
    clock.move(2)

    assert (await bmc.get(SYSTEM)).data["PowerState"] == "On"
    assert len(bmc.server.state.boots) == 1


async def test_force_off_during_a_graceful_shutdown_ends_it_at_once(start: Start, clock: FakeClock) -> None:
    bmc = await start(options=ServiceOptions(graceful_off_seconds=60, power_on_seconds=5), clock=clock)

    await bmc.reset("GracefulShutdown")
    assert bmc.server.state.power() is PowerState.POWERING_OFF
    bmc.server.state.set_power("On")
    await bmc.reset("ForceOff")
    assert bmc.server.state.power() is PowerState.OFF
    await bmc.reset("On")
    clock.move(61)

    assert bmc.server.state.power() is PowerState.ON, "the shutdown that was overtaken must not come back"


async def test_a_host_may_ignore_a_graceful_shutdown_for_ever(start: Start) -> None:
    bmc = await start(options=ServiceOptions(ignores_graceful_off=True))

    assert (await bmc.reset("GracefulShutdown")).status == 204
    assert bmc.server.state.power() is PowerState.ON
    assert (await bmc.reset("ForceOff")).status == 204
    assert bmc.server.state.power() is PowerState.OFF


async def test_a_bmc_may_say_yes_to_a_restart_and_not_do_it(start: Start) -> None:
    bmc = await start(options=ServiceOptions(ignores_restart=True))

    assert (await bmc.reset("ForceRestart")).status == 204
    assert bmc.server.state.boots == []
    assert len(bmc.server.state.resets) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "ActionParameterMissing"),
        ({"ResetType": "Explode"}, "ActionParameterValueNotInList"),
        ({"ResetType": 1}, "ActionParameterValueTypeError"),
        ({"ResetType": "On", "Delay": 3}, "ActionParameterUnknown"),
    ],
)
async def test_a_wrong_reset_is_refused_and_nothing_happens(start: Start, body: object, message: str) -> None:
    bmc = await start()

    reply = await bmc.post(RESET, body)

    assert reply.status == 400
    assert reply.message_ids == [message]
    assert bmc.server.state.resets == []


async def test_the_time_of_the_last_reset_is_shown(start: Start) -> None:
    bmc = await start()
    before = (await bmc.get(SYSTEM)).data["LastResetTime"]

    await bmc.reset("ForceRestart")

    assert (await bmc.get(SYSTEM)).data["LastResetTime"] > before


async def test_a_reset_of_the_chassis_resets_its_system(start: Start) -> None:
    bmc = await start()

    reply = await bmc.reset("ForceOff", "/redfish/v1/Chassis/1/Actions/Chassis.Reset")

    assert reply.status == 204
    assert bmc.server.state.power() is PowerState.OFF


def test_every_reset_type_is_allowed_in_some_state() -> None:
    assert {reset_type for _, reset_type in TRANSITIONS} == set(ResetType)
