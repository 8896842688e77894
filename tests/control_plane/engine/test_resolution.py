"""What `use` means: a registered step, else a driver operation, else the fallback."""

from typing import Any

import msgspec
import pytest

from control_plane.engine.context import StepContext
from control_plane.engine.profile import ProfileStep
from control_plane.engine.registry import Definition, NoArguments, StepRegistry, default_registry
from control_plane.engine.resolution import Call, Resolution, Resolved, Resolver
from control_plane.engine.states import RunsOn
from control_plane.engine.timing import Timing
from protocol.operations import CONCERNS, OPERATIONS
from tests.control_plane.engine.operations import EXAMPLES

BOUND = dict.fromkeys(CONCERNS, "redfish")


class Notify(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    channel: str


async def nothing(context: StepContext, arguments: object) -> None:
    return None


@pytest.fixture
def registry() -> StepRegistry:
    made = default_registry()
    made.add(
        Definition(
            id="power.setPower",
            runs_on=RunsOn.CONTROL_PLANE,
            with_=None,
            function=nothing,
            relays=frozenset({RunsOn.SITE}),
            timeout_ms=90_000,
            retries=2,
        )
    )
    made.add(
        Definition(
            id="plugin.notify", runs_on=RunsOn.CONTROL_PLANE, with_=Notify, function=nothing, timeout_ms=60_000
        )
    )
    made.add(
        Definition(
            id="plugin.mount",
            runs_on=RunsOn.CONTROL_PLANE,
            with_=NoArguments,
            function=nothing,
            timeout_ms=60_000,
            cleanup="plugin.absent",
        )
    )
    return made


def resolve(registry: StepRegistry, drivers: dict[str, str] | None = None, /, **step: Any) -> Resolution:
    resolver = Resolver(registry, Timing(), BOUND if drivers is None else drivers)
    return resolver.resolve(Call.of(msgspec.convert(step, ProfileStep), "steps[0]"))


def found(resolution: Resolution) -> Resolved:
    assert resolution.issues == []
    assert resolution.found is not None
    return resolution.found


def issues(resolution: Resolution) -> dict[str, str]:
    assert resolution.found is None
    return {issue.path: f"{issue.message} | {issue.hint}" for issue in resolution.issues}


@pytest.mark.line("A10")
def test_a_registered_step_wins_over_the_operation_of_its_name(registry: StepRegistry) -> None:
    step = found(resolve(registry, use="power.setPower", on="site", **{"with": {"own": 1}}))
    assert (step.kind, step.runs_on, step.driver) == ("code", RunsOn.CONTROL_PLANE, None)
    assert (step.timeout_ms, step.retries, step.with_) == (90_000, 2, {"own": 1})


@pytest.mark.line("A11")
@pytest.mark.parametrize("on", [None, "control-plane", "site"])
def test_on_may_be_where_the_step_runs_or_what_it_relays_to(registry: StepRegistry, on: str | None) -> None:
    assert found(resolve(registry, use="power.setPower", on=on)).runs_on is RunsOn.CONTROL_PLANE


@pytest.mark.line("A11")
@pytest.mark.parametrize("on", ["ramdisk", "daemon", "host"])
def test_any_other_place_is_an_issue_and_falls_through_to_nothing(registry: StepRegistry, on: str) -> None:
    # As an operation, or by its fallback, it would resolve.
    wrong = resolve(registry, use="power.setPower", on=on, fallback={"use": "boot.getBoot", "on": "site"})
    assert "write control-plane or site" in issues(wrong)["steps[0].on"]


def test_a_command_goes_to_its_home_or_to_the_place_that_is_named() -> None:
    registry = default_registry()
    home = found(resolve(registry, use="node.reboot"))
    assert (home.kind, home.runs_on, home.await_rejoin) == ("command", RunsOn.DAEMON, True)
    assert found(resolve(registry, use="node.reboot", on="host")).runs_on is RunsOn.DAEMON
    assert found(resolve(registry, use="node.reboot", on="ramdisk")).runs_on is RunsOn.RAMDISK
    assert not found(resolve(registry, use="task.run", **{"with": {"script": "true"}})).await_rejoin


@pytest.mark.parametrize("on", ["daemon", "host"])
def test_kexec_is_not_sent_to_an_installed_system_whose_agent_would_refuse_it(on: str) -> None:
    wrong = issues(resolve(default_registry(), use="boot.kexec", on=on))
    assert "ramdisk" in wrong["steps[0].on"]
    assert found(resolve(default_registry(), use="boot.kexec", on="ramdisk")).runs_on is RunsOn.RAMDISK


@pytest.mark.parametrize("use", ["boot.kexec", "node.reboot", "daemon.upgrade", "task.run"])
def test_no_command_of_a_machine_is_sent_to_the_host_of_the_site_agent(use: str) -> None:
    assert "steps[0].on" in issues(resolve(default_registry(), use=use, on="site"))


@pytest.mark.line("A12")
@pytest.mark.parametrize("concern", CONCERNS)
def test_each_concern_resolves_to_an_operation_with_its_bound_driver(concern: str) -> None:
    operation, arguments = EXAMPLES[concern]
    drivers = {**BOUND, concern: "simulated"}
    step = found(resolve(default_registry(), drivers, use=f"{concern}.{operation}", on="site", **{"with": arguments}))
    assert step == Resolved(
        kind="operation",
        action=f"{concern}.{operation}",
        runs_on=RunsOn.SITE,
        with_=arguments,
        timeout_ms=600_000,
        driver="simulated",
    )


@pytest.mark.line("A12")
@pytest.mark.parametrize("on", ["site", "ramdisk", "daemon", "host"])
def test_an_operation_runs_on_any_agent(on: str) -> None:
    step = found(resolve(default_registry(), {"inspect": "simulated"}, use="inspect.getInventory", on=on))
    assert step.runs_on == ("daemon" if on == "host" else on)


@pytest.mark.line("A12")
def test_an_unbound_concern_is_an_issue_beside_the_arguments_faults() -> None:
    told = issues(resolve(default_registry(), {}, use="power.setPower", on="site", **{"with": {"action": "onn"}}))
    assert "none is bound to 'power'" in told["steps[0].use"]
    assert "add it to drivers, such as power: redfish" in told["steps[0].use"]
    assert "did you mean 'on'?" in told["steps[0].with.action"]


@pytest.mark.line("A12")
@pytest.mark.parametrize(
    ("use", "hint"),
    [
        ("power.setPowr", "power.setPower"),
        ("pwer.setPower", "power.setPower"),
        ("console.xyzzy", "console.getConsole"),
        ("metal.bootRamdsk", "metal.bootRamdisk"),
        ("acme.polish", "come with plugins"),
        ("", "come with plugins"),
    ],
)
def test_an_unknown_name_is_an_issue_that_names_what_is_close(use: str, hint: str) -> None:
    assert hint in issues(resolve(default_registry(), use=use, on="site"))["steps[0].use"]


@pytest.mark.line("A12")
@pytest.mark.parametrize("on", [None, "control-plane"])
def test_an_operation_needs_an_agent(on: str | None) -> None:
    told = issues(resolve(default_registry(), use="power.getPower", on=on))
    assert "write site, ramdisk or daemon" in told["steps[0].on"]


def test_every_fault_of_the_arguments_is_an_issue(registry: StepRegistry) -> None:
    told = issues(
        resolve(default_registry(), use="power.setPower", on="site", **{"with": {"acton": "on", "wait": "yes"}})
    )
    assert set(told) == {"steps[0].with.acton", "steps[0].with.action", "steps[0].with.wait"}
    assert "write true or false" in told["steps[0].with.wait"]
    assert set(issues(resolve(registry, use="plugin.notify", **{"with": {"chanel": 1}}))) == {
        "steps[0].with.chanel",
        "steps[0].with.channel",
    }


def test_a_driver_that_cannot_work_where_it_is_asked_to_is_an_issue() -> None:
    erase = {"use": "deploy.eraseDisks", "with": {"mode": "full"}}
    told = issues(resolve(default_registry(), {"deploy": "linux"}, on="site", **erase))
    assert "write ramdisk or daemon" in told["steps[0].on"]
    told = issues(resolve(default_registry(), {"power": "redfish"}, use="power.getPower", on="ramdisk"))
    assert "write site" in told["steps[0].on"]
    assert found(resolve(default_registry(), {"deploy": "linux"}, on="ramdisk", **erase)).driver == "linux"
    assert found(resolve(default_registry(), {"power": "auto"}, use="power.getPower", on="site")).driver == "auto"


@pytest.mark.line("A13")
def test_the_fallback_is_used_only_where_nothing_else_is_there(registry: StepRegistry) -> None:
    taken = found(resolve(registry, use="plugin.notify", fallback="boot.getBoot", **{"with": {"channel": "a"}}))
    assert taken.action == "plugin.notify"
    taken = found(resolve(registry, use="boot.getBoot", on="site", fallback="plugin.notify"))
    assert taken.action == "boot.getBoot"
    taken = found(resolve(registry, use="metal.getBoot", on="site", fallback="boot.getBoot"))
    assert (taken.action, taken.runs_on) == ("boot.getBoot", RunsOn.SITE)


@pytest.mark.line("A13")
def test_fallbacks_chain_and_take_what_they_leave_out_from_the_step(registry: StepRegistry) -> None:
    chain = {"use": "metal.b", "with": {"action": "on"}, "fallback": {"use": "bios.resetBios", "fallback": "x.y"}}
    drivers = {"power": "redfish"}
    told = issues(resolve(default_registry(), drivers, use="metal.a", on="site", fallback=chain))
    assert set(told) == {
        "steps[0].use",
        "steps[0].fallback.use",
        "steps[0].fallback.fallback.use",
        "steps[0].fallback.with.action",
        "steps[0].fallback.fallback.fallback",
    }
    chain["fallback"] = {"use": "power.setPower"}
    taken = found(resolve(default_registry(), drivers, use="metal.a", on="site", fallback=chain))
    assert (taken.action, taken.with_, taken.runs_on) == ("power.setPower", {"action": "on"}, RunsOn.SITE)


@pytest.mark.line("A13")
@pytest.mark.parametrize(
    "fallback", ["metal.a", {"use": "metal.b", "fallback": "metal.a"}, {"use": "metal.b", "fallback": "metal.b"}]
)
def test_fallbacks_in_a_circle_are_an_issue(registry: StepRegistry, fallback: object) -> None:
    told = issues(resolve(registry, use="metal.a", on="site", fallback=fallback))
    assert any("in a circle" in message for message in told.values())


def test_the_same_operation_elsewhere_is_no_circle() -> None:
    step = resolve(
        default_registry(),
        {"inspect": "simulated"},
        use="inspect.getInventory",
        fallback={"use": "inspect.getInventory", "on": "site"},
    )
    assert found(step).runs_on is RunsOn.SITE


def test_what_tidies_up_must_be_registered(registry: StepRegistry) -> None:
    resolver = Resolver(registry, Timing(), {})
    call = Call.of(ProfileStep(use="plugin.mount"), "steps[0]")
    told = issues(resolver.cleanup_of(found(resolver.resolve(call)), call))
    assert "'plugin.absent', which is not registered here" in told["steps[0].use"]


def test_there_is_an_example_for_every_concern() -> None:
    assert set(EXAMPLES) == set(CONCERNS)
    assert all(f"{concern}.{operation}" in OPERATIONS for concern, (operation, _) in EXAMPLES.items())


def test_an_address_with_a_password_would_be_stored_with_the_profile() -> None:
    url = "https://reader:Pa55word@files.example/a.iso"
    for step in (
        {"use": "virtual-media.insertMedia", "on": "site", "with": {"image": url}},
        {"use": "metal.writeImage", "with": {"image": {"url": url, "sha256": "ab" * 32}}},
    ):
        told = issues(resolve(default_registry(), **step))
        (said,) = [words for path, words in told.items() if path.startswith("steps[0].with.image")]
        assert "credentials set images/HOST" in said
        assert "Pa55word" not in said
