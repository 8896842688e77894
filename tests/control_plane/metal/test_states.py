"""The table of provision states, and what looking at a machine can prove."""

from itertools import product

import pytest

from control_plane.metal.states import (
    AT_REST,
    BASES,
    GOAL,
    MOVING,
    TRANSITIONS,
    MetalVerb,
    Outlook,
    ProvisionState,
    Refusal,
    Residue,
    changes_disks,
    erasing,
    may_start,
    safe_state,
)

S, V = ProvisionState, MetalVerb
RESIDUES = (None, Residue.CHANGED, Residue.ERASING)


def test_every_state_has_its_transitions_and_none_is_a_dead_end() -> None:
    assert set(TRANSITIONS) == set(S)
    assert all(TRANSITIONS.values())


def test_whatever_may_be_started_is_a_transition_and_so_are_all_its_ends() -> None:
    for verb, state, base, residue in product(V, S, BASES, RESIDUES):
        if may_start(verb, state, base, residue) is not None or verb is V.REMEDIATE:
            continue
        moving = MOVING[verb]
        assert moving in TRANSITIONS[state], (verb, state)
        # To its goal, to failed, or back where it began.
        assert {GOAL[verb], S.FAILED, state} <= TRANSITIONS[moving], (verb, state)


@pytest.mark.parametrize(
    ("verb", "state", "allowed"),
    [
        ("commission", "enrolled", True),
        ("commission", "available", True),
        ("commission", "deployed", False),
        ("deploy", "available", True),
        ("deploy", "enrolled", False),
        ("deploy", "deployed", False),
        ("release", "deployed", True),
        ("release", "available", False),
        ("release", "enrolled", False),
        ("rescue", "enrolled", True),
        ("rescue", "deployed", True),
        ("remediate", "deployed", True),
        ("remediate", "available", False),
        ("recover", "deployed", False),
    ],
)
def test_what_may_be_started_from_a_state_at_rest(verb: str, state: str, allowed: bool) -> None:
    refusal = may_start(V(verb), S(state), S(state), None)
    assert (refusal is None) is allowed
    if refusal is not None:
        assert refusal.message.startswith(f"it is {state}: ")


@pytest.mark.parametrize("state", sorted(set(S) - AT_REST))
@pytest.mark.parametrize("verb", list(V))
def test_nothing_is_started_while_something_moves_it_or_it_is_in_maintenance(verb: MetalVerb, state: str) -> None:
    assert may_start(verb, S(state), S.AVAILABLE, None) is not None


def test_after_a_failed_deploy_it_may_be_tried_again_and_after_a_failed_commission_not() -> None:
    assert may_start(V.DEPLOY, S.FAILED, S.AVAILABLE, Residue.CHANGED) is None
    refusal = may_start(V.DEPLOY, S.FAILED, S.ENROLLED, Residue.CHANGED)
    assert refusal is not None
    assert "commission it first" in refusal.message


@pytest.mark.parametrize("verb", list(V))
@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("state", [S.FAILED, S.RESCUE])
def test_a_machine_whose_erasure_was_begun_is_released_again_or_looked_into_and_nothing_else(
    verb: MetalVerb, base: ProvisionState, state: ProvisionState
) -> None:
    refusal = may_start(verb, state, base, Residue.ERASING)
    assert (refusal is None) is (verb in (V.RELEASE, V.RESCUE))


def outlook(state: str = "failed", **more: object) -> Outlook:
    values: dict[str, object] = {
        "state": S(state),
        "base": S.AVAILABLE,
        "residue": None,
        "verb": V.DEPLOY,
        "done": False,
        "agent": None,
        "agent_is_new": False,
        "is_back": False,
        "ramdisk_is_last": False,
    }
    return Outlook(**(values | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", sorted(set(S) - {S.FAILED, S.RESCUE}))
def test_only_what_has_failed_or_was_rescued_recovers(state: ProvisionState) -> None:
    assert isinstance(safe_state(outlook(state)), Refusal)


@pytest.mark.parametrize("ramdisk_is_last", [False, True])
@pytest.mark.parametrize("base", [S.ENROLLED, S.AVAILABLE])
@pytest.mark.parametrize("state", ["failed", "rescue"])
def test_what_was_not_in_service_and_never_changed_is_as_it_was(
    state: str, base: ProvisionState, ramdisk_is_last: bool
) -> None:
    assert safe_state(outlook(state, base=base, ramdisk_is_last=ramdisk_is_last)) is base


def test_a_deploy_that_has_changed_the_disks_leaves_a_machine_that_nobody_trusts() -> None:
    assert safe_state(outlook(residue=Residue.CHANGED)) is S.ENROLLED


def test_a_deployed_systems_agent_that_came_late_makes_it_deployed_and_an_older_ones_does_not() -> None:
    seen = outlook(residue=Residue.CHANGED, agent="daemon", agent_is_new=True, is_back=True)
    assert safe_state(seen) is S.DEPLOYED
    assert safe_state(seen._replace(is_back=False)) is S.ENROLLED
    assert safe_state(seen._replace(agent_is_new=False)) is S.ENROLLED
    assert safe_state(seen._replace(verb=V.COMMISSION)) is S.ENROLLED


@pytest.mark.parametrize("verb", [V.RESCUE, V.REMEDIATE])
def test_a_machine_in_service_whose_rescue_ran_a_script_still_has_to_be_released(verb: MetalVerb) -> None:
    """`enrolled` would let it be commissioned and given to somebody else, with its data on it."""
    seen = outlook(base=S.DEPLOYED, residue=Residue.CHANGED, verb=verb)
    assert safe_state(seen._replace(is_back=True)) is S.DEPLOYED
    assert safe_state(seen._replace(ramdisk_is_last=True)) is S.RECOVERING


@pytest.mark.parametrize(("verb", "goal"), list(GOAL.items()))
def test_where_only_the_clean_up_has_failed_the_goal_was_reached(verb: MetalVerb, goal: ProvisionState) -> None:
    assert safe_state(outlook(verb=verb, done=True, residue=Residue.ERASING)) is goal


@pytest.mark.parametrize("as_it_is", [False, True])
@pytest.mark.parametrize("agent", [None, "ramdisk", "daemon"])
@pytest.mark.parametrize("state", ["failed", "rescue"])
def test_no_look_and_no_word_makes_a_half_erased_machine_clean(state: str, agent: str | None, as_it_is: bool) -> None:
    seen = outlook(state, base=S.DEPLOYED, residue=Residue.ERASING, agent=agent, agent_is_new=True, is_back=True)
    told = safe_state(seen, as_it_is=as_it_is)
    assert isinstance(told, Refusal)
    assert "release it again" in told.message


@pytest.mark.parametrize("agent", [None, "ramdisk"])
def test_a_machine_in_service_that_was_left_in_its_ramdisk_has_to_be_started_first(agent: str | None) -> None:
    seen = outlook("rescue", base=S.DEPLOYED, verb=V.RESCUE, agent=agent, agent_is_new=True, ramdisk_is_last=True)
    assert safe_state(seen) is S.RECOVERING
    assert safe_state(seen._replace(agent="daemon", ramdisk_is_last=False, is_back=True)) is S.DEPLOYED
    # A daemon's connection of before the ramdisk, which nobody has found broken yet.
    assert safe_state(seen._replace(agent="daemon")) is S.RECOVERING


def test_a_rescue_whose_workflow_has_failed_and_whose_ramdisk_is_there_is_a_rescue() -> None:
    seen = outlook(base=S.DEPLOYED, verb=V.RESCUE, agent="ramdisk", agent_is_new=True, ramdisk_is_last=True)
    assert safe_state(seen) is S.RESCUE


@pytest.mark.parametrize("state", ["failed", "rescue"])
def test_a_machine_in_service_that_nobody_hears_of_is_neither_restarted_nor_believed_to_be_well(state: str) -> None:
    """It may be serving, with its agent away: a reset would be an outage that nobody asked for."""
    told = safe_state(outlook(state, base=S.DEPLOYED))
    assert isinstance(told, Refusal)
    assert "recover it once its agent is back" in told.message
    assert "--as-it-is" in told.message


def test_an_operators_word_stands_for_an_agent_that_is_not_there_but_not_against_a_ramdisk_that_is() -> None:
    seen = outlook("rescue", base=S.DEPLOYED, verb=V.RESCUE, ramdisk_is_last=True)
    assert safe_state(seen, as_it_is=True) is S.DEPLOYED
    told = safe_state(seen._replace(agent="ramdisk"), as_it_is=True)
    assert isinstance(told, Refusal)
    assert "without --as-it-is" in told.message


def test_an_operators_word_makes_no_machine_deployed_that_was_not() -> None:
    assert safe_state(outlook("rescue", base=S.AVAILABLE), as_it_is=True) is S.AVAILABLE
    assert safe_state(outlook(residue=Residue.CHANGED), as_it_is=True) is S.ENROLLED


def test_recovering_never_leads_where_no_transition_leads_and_starts_only_what_may_be_started() -> None:
    flags = (False, True)
    for state, base, residue, verb, done, agent, new, back, last, word in product(
        (S.FAILED, S.RESCUE), BASES, RESIDUES, V, flags, (None, "ramdisk", "daemon"), flags, flags, flags, flags
    ):
        to = safe_state(Outlook(state, base, residue, verb, done, agent, new, back, last), as_it_is=word)
        assert isinstance(to, Refusal) or to in TRANSITIONS[state], (state, to)
        if to is S.RECOVERING:
            assert may_start(V.RECOVER, state, base, residue) is None


@pytest.mark.parametrize("base", [S.ENROLLED, S.AVAILABLE])
@pytest.mark.parametrize("state", [S.FAILED, S.RESCUE])
def test_only_a_machine_that_was_in_service_is_started_from_its_disk(
    state: ProvisionState, base: ProvisionState
) -> None:
    refusal = may_start(V.RECOVER, state, base, None)
    assert refusal is not None
    assert f"it was {base} before" in refusal.message


def test_an_erasure_is_the_driver_s_own_or_in_its_absence_a_script() -> None:
    assert erasing(["metal.bootRamdisk", "deploy.eraseDisks", "task.run"]) == {"deploy.eraseDisks"}
    assert erasing(["metal.bootRamdisk", "task.run"]) == {"task.run"}
    assert not erasing(["raid.applyRaid", "metal.writeImage", "deploy.getDisks"])


def test_what_changes_disks_is_known_and_a_script_may() -> None:
    assert all(
        changes_disks(action)
        for action in ("deploy.eraseDisks", "metal.writeImage", "raid.applyRaid", "task.run", "metal.configDrive")
    )
    assert not any(
        changes_disks(action)
        for action in (
            "deploy.getDisks",
            "raid.getRaid",
            "metal.bootRamdisk",
            "power.setPower",
            "inspect.getInventory",
        )
    )


def test_maintenance_stands_in_for_every_state_at_rest() -> None:
    assert all(S.MAINTENANCE in TRANSITIONS[state] for state in AT_REST)
    assert TRANSITIONS[S.MAINTENANCE] == AT_REST
