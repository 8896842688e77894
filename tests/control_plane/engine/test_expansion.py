"""From a profile to rows: their order, ids, defaults and limits."""

from typing import Any

import pytest

from control_plane.engine.context import StepContext
from control_plane.engine.expansion import Expansion, RowSeed, expand
from control_plane.engine.registry import Definition, NoArguments, StepRegistry, default_registry
from control_plane.engine.states import Phase, RunsOn
from control_plane.engine.timing import Timing

DRIVERS = {"power": "redfish", "virtual-media": "redfish", "deploy": "linux"}
RESET = {"use": "power.setPower", "on": "site", "with": {"action": "reset"}}


async def nothing(context: StepContext, arguments: object) -> None:
    return None


@pytest.fixture
def registry() -> StepRegistry:
    made = default_registry()
    for name, cleanup in (("work", None), ("mount", "plane.unmount"), ("unmount", None)):
        made.add(
            Definition(
                id=f"plane.{name}",
                runs_on=RunsOn.CONTROL_PLANE,
                with_=NoArguments if name == "work" else None,
                function=nothing,
                timeout_ms=120_000,
                retries=1,
                cleanup=cleanup,
            )
        )
    return made


def expanded(registry: StepRegistry, *steps: dict[str, Any], node: bool = True, **more: Any) -> Expansion:
    document = {"profile": "p", "drivers": DRIVERS, "steps": list(steps), **more}
    return expand(document, registry, Timing(), has_node=node)


def seeds(registry: StepRegistry, *steps: dict[str, Any], **more: Any) -> list[RowSeed]:
    expansion = expanded(registry, *steps, **more)
    assert expansion.issues == []
    assert expansion.profile is not None
    return expansion.seeds


def issues(registry: StepRegistry, *steps: dict[str, Any], **more: Any) -> dict[str, str]:
    expansion = expanded(registry, *steps, **more)
    assert expansion.profile is None
    return {issue.path: f"{issue.message} | {issue.hint}" for issue in expansion.issues}


def test_rows_stand_in_the_order_of_the_phases(registry: StepRegistry) -> None:
    rows = seeds(
        registry,
        {"id": "first", "use": "plane.mount"},
        {"id": "second", "use": "boot.kexec", "onFailure": RESET},
        {"id": "third", "use": "plane.mount", "with": {"what": 3}, "onFailure": {"use": "plane.mount"}},
        cleanup=[{"id": "last", "use": "plane.mount"}, {"use": "virtual-media.ejectMedia", "on": "site"}],
    )
    assert [(row.phase.value, row.id, row.owner_seq) for row in rows] == [
        ("main", "first", None),
        ("main", "second", None),
        ("main", "third", None),
        ("on-failure", "second.on-failure", 2),
        ("on-failure", "third.on-failure", 3),
        ("cleanup", "third.on-failure.cleanup", 5),
        ("cleanup", "third.cleanup", 3),
        ("cleanup", "first.cleanup", 1),
        ("cleanup", "last", None),
        ("cleanup", "virtual-media.ejectMedia", None),
        ("cleanup", "last.cleanup", 9),
    ]
    assert [row.seq for row in rows] == list(range(1, 12))
    tidy = rows[6]
    assert (tidy.action, tidy.spec.with_, tidy.spec.retries) == ("plane.unmount", {"what": 3}, 1)


def test_a_step_without_an_id_has_its_use_and_repeats_are_numbered(registry: StepRegistry) -> None:
    work = {"use": "plane.work"}
    rows = seeds(registry, work, work, {"id": "plane.work-2", **work}, work, cleanup=[work, {"id": "x", **work}])
    assert [row.id for row in rows] == [
        "plane.work",
        "plane.work-3",
        "plane.work-2",
        "plane.work-4",
        "plane.work-5",
        "x",
    ]


def test_the_signs_of_a_key_never_get_into_an_id(registry: StepRegistry) -> None:
    registry.add(Definition(id="a:b#c", runs_on=RunsOn.DAEMON, with_=None, timeout_ms=1))
    assert [row.id for row in seeds(registry, {"use": "a:b#c"})] == ["a-b-c"]


def test_an_id_follows_the_profile_and_the_action_what_was_found(registry: StepRegistry) -> None:
    (row,) = seeds(registry, {"use": "metal.work", "fallback": "plane.work"})
    assert (row.id, row.action) == ("metal.work", "plane.work")


def test_two_steps_of_one_id_are_an_issue_in_whatever_phase(registry: StepRegistry) -> None:
    work = {"use": "plane.work"}
    told = issues(
        registry,
        {"id": "a", **work, "onFailure": work},
        {"id": "a", **work},
        {"id": "m", "use": "plane.mount"},
        {"id": "a.on-failure", **work},
        cleanup=[{"id": "m.cleanup", **work}, {"id": "m", **work}],
    )
    assert set(told) == {"steps[1].id", "steps[0].onFailure", "cleanup[0].id", "cleanup[1].id"}
    assert "is also that of steps[0]" in told["steps[1].id"]


def test_ids_made_from_a_long_one_are_counted(registry: StepRegistry) -> None:
    work = {"use": "plane.work"}
    assert len(seeds(registry, {"id": "x" * 245, **work, "onFailure": work})) == 2
    assert "257 characters" in issues(registry, {"id": "x" * 246, **work, "onFailure": work})["steps[0].onFailure"]


def test_defaults_come_from_the_definition_and_from_the_engine(registry: StepRegistry) -> None:
    code, operation, command = (
        row.spec for row in seeds(registry, {"use": "plane.work"}, RESET, {"use": "task.run", "with": {"a": 1}})
    )
    assert (code.kind, code.timeout_ms, code.retries, code.on_failure) == ("code", 120_000, 1, "fail")
    assert (operation.kind, operation.timeout_ms, operation.retries, operation.driver) == (
        "operation",
        600_000,
        0,
        "redfish",
    )
    assert (command.kind, command.timeout_ms, command.with_, command.await_rejoin) == (
        "command",
        900_000,
        {"a": 1},
        False,
    )


def test_the_steps_own_values_go_before_defaults(registry: StepRegistry) -> None:
    (row, failure) = seeds(
        registry,
        {
            "use": "plane.work",
            "timeout": "90s",
            "retries": 0,
            "when": "a && !b",
            "onFailure": {**RESET, "timeout": 5, "retries": 3, "when": "c"},
        },
    )
    spec = row.spec
    assert (spec.timeout_ms, spec.retries, spec.when, spec.on_failure) == (90_000, 0, "a && !b", "step")
    spec = failure.spec
    assert (spec.timeout_ms, spec.retries, spec.when, spec.on_failure) == (5, 3, "c", "fail")


@pytest.mark.parametrize("word", ["fail", "continue", "rescue"])
def test_what_follows_a_failure_is_kept(registry: StepRegistry, word: str) -> None:
    rows = seeds(registry, {"use": "plane.work", "onFailure": word}, cleanup=[{**RESET, "onFailure": word}])
    assert [row.spec.on_failure for row in rows] == [word, word]


@pytest.mark.parametrize("use", ["boot.kexec", "node.reboot", "daemon.upgrade"])
def test_what_ends_its_own_agent_is_awaited_by_its_return(registry: StepRegistry, use: str) -> None:
    rows = seeds(registry, {"use": use, "onFailure": {"use": use}}, cleanup=[{"use": use}])
    assert [row.spec.await_rejoin for row in rows] == [True, True, True]


def test_any_step_may_await_the_machines_return(registry: StepRegistry) -> None:
    rows = seeds(registry, {**RESET, "await": "rejoin"}, {"use": "plane.work", "await": "rejoin"}, RESET)
    assert [row.spec.await_rejoin for row in rows] == [True, True, False]


def test_without_a_node_only_the_control_planes_own_steps_can_run(registry: StepRegistry) -> None:
    assert len(seeds(registry, {"use": "plane.work", "when": "a"}, {"use": "plane.mount"}, node=False)) == 3
    told = issues(
        registry,
        RESET,
        {"use": "boot.kexec"},
        {"use": "plane.work", "await": "rejoin", "onFailure": RESET},
        cleanup=[{"use": "virtual-media.ejectMedia", "on": "site"}],
        node=False,
    )
    assert set(told) == {"steps[0].use", "steps[1].use", "steps[2].await", "steps[2].onFailure.use", "cleanup[0].use"}


@pytest.mark.line("A06")
def test_every_step_that_does_not_resolve_is_listed_beside_every_other_fault(registry: StepRegistry) -> None:
    told = issues(
        registry,
        {"use": "power.setPowr", "on": "sit", "timeout": "soon"},
        {"use": "plane.work", "onFailure": {"use": "metal.none"}},
        {"use": "raid.getRaid", "on": "site"},
        {"use": "boot.kexec", "on": "site"},
        {"use": "plane.work", "with": {"a": 1}, "when": "="},
        cleanup=[{"use": "metal.gone"}],
    )
    assert list(told) == [
        "steps[0].on",
        "steps[0].timeout",
        "steps[0].use",
        "steps[1].onFailure.use",
        "steps[2].use",
        "steps[3].on",
        "steps[4].when",
        "steps[4].with.a",
        "cleanup[0].use",
    ]


def test_what_follows_from_a_fault_is_not_told_as_another(registry: StepRegistry) -> None:
    told = issues(registry, {**RESET, "on": "nowhere"}, {**RESET, "with": 3}, drivers={"power": "redfihs"})
    assert list(told) == ["drivers.power", "steps[0].on", "steps[1].with"]


@pytest.mark.line("A07")
def test_512_steps_are_taken_and_513_refused(registry: StepRegistry) -> None:
    work = {"use": "plane.work"}
    assert len(seeds(registry, *[work] * 512)) == 512
    assert "513" in issues(registry, *[work] * 513)["steps"]


@pytest.mark.line("A07")
def test_steps_of_every_phase_are_counted(registry: StepRegistry) -> None:
    both = {"use": "plane.mount", "onFailure": {"use": "plane.work"}}
    work = [{"use": "plane.work"}]
    assert len(seeds(registry, *[both] * 170, cleanup=work * 2)) == 512
    assert "513" in issues(registry, *[both] * 170, cleanup=work * 3)["steps"]


def test_hundreds_of_wrong_names_are_all_told(registry: StepRegistry) -> None:
    expansion = expanded(registry, *[{"use": f"power.setPwr{number}"} for number in range(300)])
    assert len(expansion.issues) == 300
    assert "did you mean" in expansion.issues[0].hint


def test_the_phases_are_numbered_through(registry: StepRegistry) -> None:
    rows = seeds(registry, {"use": "plane.mount", "onFailure": {"use": "plane.work"}})
    assert [row.phase for row in rows] == [Phase.MAIN, Phase.ON_FAILURE, Phase.CLEANUP]
