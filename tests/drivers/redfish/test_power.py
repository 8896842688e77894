"""Power: one request to read it, one order to change it, and the truth about what came of it."""

import pytest

from drivers.redfish.reset_types import candidates, is_after, meaning
from protocol.errors import ErrorCode
from protocol.shapes.power import PowerAction, PowerState
from simulators.redfish import Drop, Effect, FaultRule, RawAnswer, ServiceOptions
from simulators.redfish import PowerState as Simulated
from tests.drivers.redfish.harness import RESET, SYSTEM, bench, without_waiting


def error_body(message_id: str, text: str) -> dict[str, object]:
    return {"error": {"code": message_id, "message": text, "@Message.ExtendedInfo": [{"MessageId": message_id}]}}


@without_waiting
async def test_a_warm_read_of_the_power_is_one_request() -> None:
    async with bench() as bmc:
        assert await bmc("power.getPower") == {"state": "on", "raw": "On"}
        before = len(bmc.bmc.journal)
        assert await bmc("power.getPower") == {"state": "on", "raw": "On"}
        assert bmc.requests()[before:] == [SYSTEM]


@pytest.mark.parametrize(
    ("action", "verb", "state", "start"),
    [
        ("on", "On", "on", Simulated.OFF),
        ("off", "ForceOff", "off", Simulated.ON),
        ("softOff", "GracefulShutdown", "off", Simulated.ON),
        ("reset", "ForceRestart", "on", Simulated.ON),
        ("cycle", "PowerCycle", "on", Simulated.ON),
        ("nmi", "Nmi", "on", Simulated.ON),
        ("reset", "On", "on", Simulated.OFF),
        ("cycle", "On", "on", Simulated.OFF),
    ],
)
@without_waiting
async def test_each_action_sends_its_reset_type_once(action: str, verb: str, state: str, start: Simulated) -> None:
    slow = ServiceOptions(power_on_seconds=20, power_off_seconds=5, graceful_off_seconds=30)
    async with bench(options=slow) as bmc:
        bmc.bmc.state.set_power(start)
        result = await bmc("power.setPower", {"action": action})
        assert result == {"state": state, "changed": True, "verbUsed": verb, "forced": False}
        assert [reset.reset_type for reset in bmc.bmc.state.resets] == [verb]


@pytest.mark.parametrize(
    ("action", "start"), [("on", Simulated.ON), ("off", Simulated.OFF), ("softOff", Simulated.OFF)]
)
@without_waiting
async def test_a_machine_that_is_as_asked_is_left_alone(action: str, start: Simulated) -> None:
    async with bench() as bmc:
        bmc.bmc.state.set_power(start)
        result = await bmc("power.setPower", {"action": action})
        assert (result["changed"], result["verbUsed"]) == (False, None)
        assert bmc.requests("POST", RESET) == []


@without_waiting
async def test_without_wait_the_order_is_given_and_the_present_state_returned() -> None:
    async with bench(options=ServiceOptions(power_off_seconds=60)) as bmc:
        result = await bmc("power.setPower", {"action": "off", "wait": False})
        assert result == {"state": "poweringOff", "changed": True, "verbUsed": "ForceOff", "forced": False}


@without_waiting
async def test_an_nmi_to_a_machine_that_is_off_is_refused_before_it_is_sent() -> None:
    async with bench() as bmc:
        bmc.bmc.state.set_power(Simulated.OFF)
        assert (await bmc.fails("power.setPower", {"action": "nmi"})).code is ErrorCode.CONFLICT
        assert bmc.requests("POST", RESET) == []


@pytest.mark.case("B23")
@pytest.mark.parametrize(
    ("raw", "state"),
    [
        ("On", "on"),
        ("Off", "off"),
        ("PoweringOn", "poweringOn"),
        ("PoweringOff", "poweringOff"),
        (None, "unknown"),
        ("Reset", "unknown"),
        ("Unknown", "unknown"),
        ("Paused", "unknown"),
        ("", "unknown"),
        (7, "unknown"),
    ],
)
@without_waiting
async def test_every_word_for_the_power_state_is_understood_and_none_is_taken_for_off(
    raw: object, state: str
) -> None:
    async with bench(faults=[FaultRule(method="GET", path=SYSTEM, set={"/PowerState": raw})]) as bmc:
        for _ in range(2):
            assert (await bmc("power.getPower"))["state"] == state


@pytest.mark.case("B23")
@without_waiting
async def test_an_unclear_state_is_waited_out_before_and_after_the_order() -> None:
    unclear = tuple(Effect(set={"/PowerState": word}) for word in (None, "Reset", "Unknown"))
    coming = tuple(Effect(set={"/PowerState": word}) for word in (None, "Reset", "PoweringOn"))
    async with bench() as bmc:
        bmc.bmc.state.set_power(Simulated.OFF)
        bmc.bmc.faults.add(FaultRule(name="before", method="GET", path=SYSTEM, sequence=unclear))
        bmc.bmc.faults.add(FaultRule(name="after", method="GET", path=SYSTEM, after=1, sequence=coming))
        result = await bmc("power.setPower", {"action": "on"})
        assert (result["state"], result["verbUsed"]) == ("on", "On")
        assert len(bmc.bmc.state.resets) == 1
        assert bmc.bmc.faults.hits("after") == len(coming)


@pytest.mark.case("B23")
@without_waiting
async def test_a_machine_that_is_powering_on_is_waited_for_and_gets_no_order() -> None:
    async with bench(options=ServiceOptions(power_on_seconds=30)) as bmc:
        bmc.bmc.state.set_power(Simulated.OFF)
        await bmc("power.setPower", {"action": "on", "wait": False})
        result = await bmc("power.setPower", {"action": "on"})
        assert result == {"state": "on", "changed": False, "verbUsed": None, "forced": False}
        assert len(bmc.bmc.state.resets) == 1


@pytest.mark.case("B24")
@pytest.mark.parametrize(
    ("status", "message_id"),
    [
        (409, "Base.1.12.ActionParameterValueConflict"),
        (409, ""),
        (400, "IDRAC.2.8.SYS518"),
        (400, "iLO.2.14.InvalidOperationForSystemState"),
        (503, "Base.1.8.ServiceTemporarilyUnavailable"),
    ],
)
@without_waiting
async def test_on_that_is_refused_shortly_after_off_is_asked_again_while_it_is_still_off(
    status: int, message_id: str
) -> None:
    refusal = FaultRule(
        method="POST",
        path=RESET,
        match_body={"ResetType": "On"},
        count=6,
        status=status,
        body=error_body(message_id, ""),
    )
    async with bench(faults=[refusal]) as bmc:
        await bmc("power.setPower", {"action": "off"})
        assert (await bmc("power.setPower", {"action": "on"}))["state"] == "on"
        assert [reset.reset_type for reset in bmc.bmc.state.resets] == ["ForceOff", "On"]


@pytest.mark.case("B24")
@without_waiting
async def test_on_that_is_refused_for_ever_ends_with_the_words_of_the_bmc() -> None:
    body = error_body("Base.1.12.ActionParameterValueConflict", "")
    async with bench(faults=[FaultRule(method="POST", path=RESET, status=409, body=body)]) as bmc:
        bmc.bmc.state.set_power(Simulated.OFF)
        error = await bmc.fails("power.setPower", {"action": "on"})
        assert error.code is ErrorCode.CONFLICT
        assert error.bmc[0].id == "Base.1.12.ActionParameterValueConflict"


@pytest.mark.case("B25")
@pytest.mark.parametrize("status", [400, 409, 500])
@without_waiting
async def test_a_refusal_by_a_machine_that_is_as_wanted_by_now_is_success(status: int) -> None:
    async with bench() as bmc:
        # The first look is stale: it shows a state that has passed.
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, after=0, count=1, set={"/PowerState": "Off"}))
        body = error_body("iLO.2.14.InvalidOperationForSystemState", "already in this state")
        bmc.bmc.faults.add(FaultRule(method="POST", path=RESET, status=status, body=body))
        result = await bmc("power.setPower", {"action": "on"})
        assert result["state"] == "on"
        assert len(bmc.requests("POST", RESET)) == 1


@pytest.mark.case("B25")
@without_waiting
async def test_a_refusal_that_no_waiting_mends_is_reported_at_once() -> None:
    body = error_body("Base.1.8.InsufficientPrivilege", "")
    async with bench(faults=[FaultRule(method="POST", path=RESET, status=403, body=body)]) as bmc:
        error = await bmc.fails("power.setPower", {"action": "off"})
        assert error.code is ErrorCode.AUTH_FAILED
        assert len(bmc.requests("POST", RESET)) == 1


@pytest.mark.case("B26")
@without_waiting
async def test_a_shutdown_that_the_host_ignores_is_forced_after_its_time() -> None:
    heard: list[str] = []
    async with bench(options=ServiceOptions(ignores_graceful_off=True)) as bmc:
        result = await bmc(
            "power.setPower",
            {"action": "softOff", "softTimeout": 90},
            progress=lambda message, _: heard.append(message),
        )
        assert result == {"state": "off", "changed": True, "verbUsed": "ForceOff", "forced": True}
        assert [reset.reset_type for reset in bmc.bmc.state.resets] == ["GracefulShutdown", "ForceOff"]
        assert any("90 s" in message for message in heard)


@pytest.mark.case("B26")
@without_waiting
async def test_the_power_is_not_cut_before_the_soft_timeout_because_the_operation_is_short() -> None:
    async with bench(options=ServiceOptions(ignores_graceful_off=True)) as bmc:
        error = await bmc.fails("power.setPower", {"action": "softOff", "softTimeout": 300}, timeout=60)
        assert error.code is ErrorCode.TIMEOUT
        assert "nothing was forced" in error.message
        assert [reset.reset_type for reset in bmc.bmc.state.resets] == ["GracefulShutdown"]


@pytest.mark.case("B26")
@without_waiting
async def test_a_bmc_without_a_graceful_shutdown_cuts_the_power_and_says_so() -> None:
    async with bench() as bmc:
        bmc.bmc.state.edit(
            SYSTEM,
            lambda document: document["Actions"]["#ComputerSystem.Reset"].update(
                {"ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}
            ),
        )
        result = await bmc("power.setPower", {"action": "softOff"})
        assert result == {"state": "off", "changed": True, "verbUsed": "ForceOff", "forced": True}


@pytest.mark.case("B26")
@without_waiting
async def test_an_order_that_was_taken_and_does_nothing_is_not_applied() -> None:
    async with bench(options=ServiceOptions(power_off_seconds=1e9)) as bmc:
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, set={"/PowerState": "On"}))
        error = await bmc.fails("power.setPower", {"action": "off"})
        assert error.code is ErrorCode.NOT_APPLIED
        assert error.details == {"verb": "ForceOff", "state": "on"}
        assert len(bmc.bmc.state.resets) == 1


@without_waiting
async def test_a_restart_without_a_reset_type_for_it_is_off_and_on() -> None:
    async with bench(options=ServiceOptions(power_on_seconds=9, power_off_seconds=4)) as bmc:
        bmc.bmc.state.edit(
            SYSTEM,
            lambda document: document["Actions"]["#ComputerSystem.Reset"].update(
                {"ResetType@Redfish.AllowableValues": ["On", "ForceOff", "Nmi"]}
            ),
        )
        result = await bmc("power.setPower", {"action": "reset"})
        assert (result["state"], result["verbUsed"]) == ("on", "On")
        assert [reset.reset_type for reset in bmc.bmc.state.resets] == ["ForceOff", "On"]


@without_waiting
async def test_a_reset_type_that_is_listed_and_unknown_gives_way_to_the_next() -> None:
    body = error_body("Base.1.8.ActionParameterNotSupported", "")
    rule = FaultRule(method="POST", path=RESET, match_body={"ResetType": "On"}, status=400, body=body)
    async with bench(faults=[rule]) as bmc:
        bmc.bmc.state.set_power(Simulated.OFF)
        assert (await bmc("power.setPower", {"action": "on"}))["verbUsed"] == "PushPowerButton"


LOST = {
    "the answer comes after the deadline": FaultRule(method="POST", path=RESET, answer_late=1e6),
    "the connection is cut after it was done": FaultRule(method="POST", path=RESET, drop=Drop.AFTER),
    "the answer is a web page": FaultRule(method="POST", path=RESET, execute=True, raw=RawAnswer(text="<html>")),
    "the server fails after it was done": FaultRule(method="POST", path=RESET, status=500, execute=True),
}


@pytest.mark.case("B28")
@pytest.mark.parametrize("fault", LOST.values(), ids=LOST.keys())
@without_waiting
async def test_a_reset_whose_answer_is_lost_is_sent_exactly_once_and_proved_by_reading(fault: FaultRule) -> None:
    async with bench(faults=[fault]) as bmc:
        bmc.bmc.state.patch(SYSTEM, {"LastResetTime": "2025-01-01T00:00:00Z"})
        result = await bmc("power.setPower", {"action": "reset"}, timeout=60)
        assert (result["verbUsed"], result["changed"]) == ("ForceRestart", True)
        assert len(bmc.requests("POST", RESET)) == len(bmc.bmc.state.resets) == 1


@pytest.mark.case("B28")
@pytest.mark.parametrize("drop", [Drop.BEFORE, Drop.AFTER])
@pytest.mark.parametrize("action", ["reset", "nmi"])
@without_waiting
async def test_a_reset_that_no_reading_can_prove_is_unknown_and_never_sent_again(drop: Drop, action: str) -> None:
    async with bench(faults=[FaultRule(method="POST", path=RESET, drop=drop)]) as bmc:
        bmc.bmc.state.edit(SYSTEM, lambda document: document.pop("LastResetTime", None))
        bmc.bmc.state.edit(SYSTEM, lambda document: document.pop("BootProgress", None))
        error = await bmc.fails("power.setPower", {"action": action})
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert len(bmc.requests("POST", RESET)) == 1


@pytest.mark.case("B28")
@pytest.mark.parametrize(("drop", "code"), [(Drop.AFTER, None), (Drop.BEFORE, ErrorCode.OUTCOME_UNKNOWN)])
@without_waiting
async def test_an_off_whose_answer_is_lost_is_settled_by_reading(drop: Drop, code: ErrorCode | None) -> None:
    async with bench(faults=[FaultRule(method="POST", path=RESET, drop=drop)]) as bmc:
        if code is None:
            assert (await bmc("power.setPower", {"action": "off"}))["state"] == "off"
        else:
            assert (await bmc.fails("power.setPower", {"action": "off"})).code is code
        assert len(bmc.requests("POST", RESET)) == 1


@pytest.mark.case("B28")
@without_waiting
async def test_a_bmc_that_is_away_after_it_took_a_reset_does_not_make_the_reset_look_repeatable() -> None:
    async with bench() as bmc:
        await bmc("power.getPower")
        bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, after=1, status=503))
        for wait in (True, False):
            result = await bmc("power.setPower", {"action": "cycle", "wait": wait}, timeout=60)
            assert (result["state"], result["verbUsed"]) == ("unknown", "PowerCycle")
            bmc.bmc.faults.clear()
            bmc.bmc.faults.add(FaultRule(method="GET", path=SYSTEM, after=1, drop=Drop.BEFORE))
        assert len(bmc.bmc.state.resets) == 2


@pytest.mark.case("B28")
@without_waiting
async def test_an_on_whose_answer_is_lost_is_proved_by_a_machine_that_is_powering_on() -> None:
    slow = ServiceOptions(power_on_seconds=200)
    async with bench(faults=[FaultRule(method="POST", path=RESET, drop=Drop.AFTER)], options=slow) as bmc:
        bmc.bmc.state.set_power(Simulated.OFF)
        assert (await bmc("power.setPower", {"action": "on"}))["state"] == "on"
        assert len(bmc.requests("POST", RESET)) == 1


@pytest.mark.case("B28")
@without_waiting
async def test_a_shutdown_whose_answer_is_lost_has_its_whole_time() -> None:
    slow = ServiceOptions(graceful_off_seconds=150)
    async with bench(faults=[FaultRule(method="POST", path=RESET, drop=Drop.AFTER)], options=slow) as bmc:
        result = await bmc("power.setPower", {"action": "softOff", "softTimeout": 170})
        assert (result["state"], result["forced"]) == ("off", False)
        assert len(bmc.requests("POST", RESET)) == 1


@without_waiting
async def test_a_restart_by_off_and_on_that_ends_off_is_never_retryable() -> None:
    async with bench() as bmc:
        bmc.bmc.state.edit(
            SYSTEM,
            lambda document: document["Actions"]["#ComputerSystem.Reset"].update(
                {"ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}
            ),
        )
        bmc.bmc.faults.add(FaultRule(method="POST", path=RESET, match_body={"ResetType": "On"}, status=503))
        error = await bmc.fails("power.setPower", {"action": "reset"})
        assert error.code is ErrorCode.NOT_APPLIED
        assert not error.code.retryable
        assert error.details == {"verb": "ForceOff", "cause": "BUSY"}


@pytest.mark.case("B28")
@without_waiting
async def test_a_bare_server_error_after_a_reset_is_no_leave_to_send_it_again() -> None:
    async with bench(faults=[FaultRule(method="POST", path=RESET, status=503, execute=True, body="<html>")]) as bmc:
        bmc.bmc.state.edit(SYSTEM, lambda document: document.pop("LastResetTime", None))
        error = await bmc.fails("power.setPower", {"action": "reset"})
        assert error.code is ErrorCode.BUSY
        assert len(bmc.bmc.state.resets) == 1


@pytest.mark.case("B29")
@without_waiting
async def test_an_action_never_carries_if_match_nor_does_the_request_after_it() -> None:
    refuses = FaultRule(method="POST", match_headers={"If-Match": "*"}, status=412)
    async with bench(faults=[refuses]) as bmc:
        await bmc("boot.setBootDevice", {"device": "pxe"})
        await bmc("power.setPower", {"action": "reset"})
        await bmc("virtual-media.insertMedia", {"image": "http://192.0.2.1/a.iso"})
        for entry in bmc.bmc.journal.entries():
            assert ("If-Match" in entry.headers) is (entry.method == "PATCH"), entry.path


def test_reset_types_are_chosen_from_what_the_bmc_lists() -> None:
    assert candidates(PowerAction.CYCLE, ["On", "ForceRestart"]) == ["ForceRestart"]
    assert candidates(PowerAction.SOFT_OFF, ["PushPowerButton", "ForceOff"]) == ["PushPowerButton"]
    assert candidates(PowerAction.OFF, ["On", "ForceOff", "Off"]) == ["ForceOff", "Off"]
    assert candidates(PowerAction.NMI, ["On"]) == []
    assert candidates(PowerAction.ON, []) == ["On", "ForceOn", "PushPowerButton"]
    assert candidates(PowerAction.ON, ["On", "Resume"], "Paused") == ["Resume", "On"]


def test_zeros_and_an_unset_clock_prove_no_restart() -> None:
    before = {"PowerState": "On", "LastResetTime": "2025-01-01T00:00:00Z"}
    assert is_after(before, {**before, "LastResetTime": "2025-01-01T00:05:00Z"})
    assert not is_after(before, {**before, "LastResetTime": "0000-00-00T00:00:00+00:00"})
    assert not is_after(before, {**before, "LastResetTime": "1970-01-01T00:02:17+00:00"})
    assert is_after(before, {**before, "PowerState": "Off"})
    finished, testing = (
        {"Oem": {"Hpe": {"PostState": state}}} for state in ("FinishedPost", "InPostDiscoveryComplete")
    )
    assert is_after({**before, **finished}, {**before, **testing})
    assert not is_after({**before, **testing}, {**before, **finished})
    assert meaning("  ON ") is PowerState.ON
