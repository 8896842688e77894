"""A RAID plan: what is kept, deleted and made, and that carrying it out leaves nothing to do."""

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from drivers.raid_layout import capacity, layout_fault, spans_of
from drivers.raid_plan import Plan
from drivers.raid_planning import plan
from protocol.shapes.raid import (
    DriveSelector,
    Media,
    RaidController,
    RaidDrive,
    RaidLevel,
    RaidReading,
    RaidVolume,
    SpareKind,
    VolumeSpec,
)

GIB = 1 << 30
FEWEST = {
    RaidLevel.RAID0: 1,
    RaidLevel.RAID1: 2,
    RaidLevel.RAID5: 3,
    RaidLevel.RAID6: 4,
    RaidLevel.RAID10: 4,
    RaidLevel.RAID50: 6,
    RaidLevel.RAID60: 8,
    RaidLevel.JBOD: 1,
}


def drive(name: str, size: int = 1000, media: Media = Media.SSD, controller: str = "C1", **more: object) -> RaidDrive:
    plain = RaidDrive(
        id=name,
        controller=controller,
        serial=f"S-{controller}-{name}",
        media=media,
        size_bytes=size * GIB,
        state="ready",
    )
    return msgspec.structs.replace(plain, **more)


def volume(
    identifier: str,
    level: RaidLevel,
    drives: list[str],
    size: int | None = None,
    controller: str = "C1",
    **more: object,
) -> RaidVolume:
    plain = RaidVolume(
        id=identifier,
        controller=controller,
        name=identifier,
        level=level,
        drives=drives,
        state="online",
        size_bytes=None if size is None else size * GIB,
    )
    return msgspec.structs.replace(plain, **more)


def reading(
    drives: list[RaidDrive], volumes: list[RaidVolume] | None = None, controllers: list[RaidController] | None = None
) -> RaidReading:
    """Volumes are told to their drives, as a driver does it."""
    volumes = volumes or []
    on = {
        (one.controller, one.id): [
            v.id for v in volumes if v.controller == one.controller and one.id in v.drives and not v.raw
        ]
        for one in drives
    }
    ids = dict.fromkeys([one.controller for one in drives] or ["C1"])
    return RaidReading(
        controllers=controllers or [RaidController(id=name) for name in ids],
        drives=[msgspec.structs.replace(one, volumes=on[one.controller, one.id]) for one in drives],
        volumes=volumes,
    )


FOUR = [drive(f"Disk{number}") for number in (1, 2, 3, 4)]
SHELF = [drive(f"Ssd{n}", 480) for n in (0, 1)] + [drive(f"Hdd{n}", 4000, Media.HDD) for n in range(8)]


def spec(level: str, drives: list[str] | DriveSelector, size: float | None = None, **more: object) -> VolumeSpec:
    plain = VolumeSpec(level=RaidLevel(level), drives=drives, size_gib="max" if size is None else size)
    return msgspec.structs.replace(plain, **more)


def messages(made: Plan) -> list[str]:
    return [str(fault) for fault in made.faults]


def test_a_volume_is_made_on_the_drives_that_are_named() -> None:
    made = plan(reading(FOUR), [spec("RAID1", ["Disk2", "S-C1-Disk1"], 100, name="system")])
    assert not made.faults
    (volume_to_make,) = made.make
    assert (volume_to_make.controller, volume_to_make.drives) == ("C1", ("Disk2", "Disk1"))
    assert (volume_to_make.size_bytes, volume_to_make.name) == (100 * GIB, "system")
    (step,) = made.steps()
    assert (step.act, step.volume, step.detail) == ("create", "system", "RAID1, 100 GiB, on Disk2, Disk1")


def test_the_size_max_is_no_size() -> None:
    assert plan(reading(FOUR), [spec("RAID5", ["Disk1", "Disk2", "Disk3"])]).make[0].size_bytes is None


@pytest.mark.parametrize(
    ("level", "count", "spans", "fault"),
    [
        ("RAID0", 1, None, None),
        ("RAID1", 1, None, "at least 2"),
        ("RAID1", 2, None, None),
        ("RAID1", 3, None, "RAID10 takes 4"),
        ("RAID5", 2, None, "at least 3"),
        ("RAID5", 3, None, None),
        ("RAID6", 3, None, "at least 4"),
        ("RAID6", 4, None, None),
        ("RAID10", 3, None, "at least 4"),
        ("RAID10", 4, None, None),
        ("RAID10", 5, None, "one size"),
        ("RAID10", 8, 3, "2 or 4 spans"),
        ("RAID10", 8, 4, None),
        ("RAID50", 5, None, "at least 6"),
        ("RAID50", 6, None, None),
        ("RAID50", 7, None, "one size"),
        ("RAID50", 9, None, None),
        ("RAID60", 7, None, "at least 8"),
        ("RAID60", 8, 2, None),
        ("RAID5", 3, 2, "no spans"),
        ("JBOD", 1, None, None),
    ],
)
def test_each_level_has_its_fewest_drives_and_its_spans(
    level: str, count: int, spans: int | None, fault: str | None
) -> None:
    found = layout_fault(RaidLevel(level), count, spans)
    assert found is None if fault is None else found is not None and fault in found


@pytest.mark.parametrize(
    ("level", "drives", "spans", "units"),
    [
        ("RAID0", 3, None, 3), ("RAID1", 2, None, 1), ("RAID5", 4, None, 3), ("RAID6", 6, None, 4),
        ("RAID10", 8, None, 4), ("RAID50", 6, None, 4), ("RAID50", 9, None, 6), ("RAID50", 12, 4, 8),
        ("RAID60", 8, None, 4), ("JBOD", 1, None, 1),
    ],
)  # fmt: skip
def test_the_capacity_is_that_of_the_data_drives(level: str, drives: int, spans: int | None, units: int) -> None:
    assert capacity(RaidLevel(level), drives, 100, spans) == units * 100


def test_spans_are_as_few_as_possible_unless_asked_for() -> None:
    assert spans_of(RaidLevel.RAID50, 12) == 2
    assert spans_of(RaidLevel.RAID50, 9) == 3
    assert spans_of(RaidLevel.RAID50, 12, 4) == 4
    assert spans_of(RaidLevel.RAID10, 8) == 4


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (DriveSelector(count=2), ["Ssd0", "Ssd1"]),
        (DriveSelector(count=2, media=Media.HDD), ["Hdd0", "Hdd1"]),
        (DriveSelector(count=2, min_size_gib=500), ["Hdd0", "Hdd1"]),
        (DriveSelector(count=2, max_size_gib=500), ["Ssd0", "Ssd1"]),
    ],
)
def test_a_selector_takes_the_smallest_drives_of_one_kind_that_do(selector: DriveSelector, chosen: list[str]) -> None:
    assert list(plan(reading(SHELF), [spec("RAID1", selector)]).make[0].drives) == chosen


def test_a_size_that_the_smallest_drives_do_not_hold_takes_larger_ones() -> None:
    assert plan(reading(SHELF), [spec("RAID1", DriveSelector(count=2), 1000)]).make[0].drives == ("Hdd0", "Hdd1")


def test_a_selector_takes_drives_of_one_enclosure() -> None:
    drives = [drive(f"Disk{n}", enclosure="A" if n < 2 else "B") for n in range(4)]
    assert plan(reading(drives), [spec("RAID1", DriveSelector(count=2, enclosure="B"))]).make[0].drives == (
        "Disk2",
        "Disk3",
    )


def test_drives_of_different_sizes_or_media_are_not_put_together() -> None:
    drives = [drive("A", 1000), drive("B", 1005), drive("C", 1200), drive("D", 1000, Media.HDD)]
    assert plan(reading(drives), [spec("RAID1", DriveSelector(count=2))]).make[0].drives == ("A", "B")
    assert (
        "2 free ones of C1 match"
        not in messages(plan(reading(drives[1:]), [spec("RAID5", DriveSelector(count=3))]))[0]
    )


def test_the_boot_drive_is_not_chosen_but_may_be_named_or_asked_for() -> None:
    drives = [drive("Disk1", boot=True), drive("Disk2"), drive("Disk3")]
    assert plan(reading(drives), [spec("RAID1", DriveSelector(count=2))]).make[0].drives == ("Disk2", "Disk3")
    allowed = DriveSelector(count=2, not_boot_drive=False)
    assert plan(reading(drives), [spec("RAID1", allowed)]).make[0].drives == ("Disk1", "Disk2")
    assert plan(reading(drives), [spec("RAID1", ["Disk1", "Disk2"])]).make[0].drives == ("Disk1", "Disk2")


def test_the_volume_that_the_machine_boots_from_since_is_kept() -> None:
    drives = [drive("Disk1", boot=True), drive("Disk2", boot=True)]
    held = reading(drives, [volume("1", RaidLevel.RAID1, ["Disk1", "Disk2"], 990)])
    made = plan(held, [spec("RAID1", DriveSelector(count=2))], delete_others=True)
    assert (len(made.keep), made.changes, made.faults) == (1, False, ())


def test_names_with_numbers_are_sorted_as_people_do() -> None:
    drives = [drive(f"Disk.{n}") for n in (10, 9, 11, 2)]
    assert plan(reading(drives), [spec("RAID1", DriveSelector(count=2))]).make[0].drives == ("Disk.2", "Disk.9")


KEPT = volume("1", RaidLevel.RAID1, ["Disk1", "Disk2"], 990, name="system")


@pytest.mark.parametrize(
    ("wanted", "is_kept"),
    [
        (spec("RAID1", ["Disk2", "Disk1"]), True),
        (spec("RAID1", ["Disk2", "Disk1"], name="system"), True),
        (spec("RAID1", ["Disk2", "Disk1"], name="other"), False),
        (spec("RAID0", ["Disk2", "Disk1"]), False),
        (spec("RAID1", ["Disk2", "Disk1"], 985), True),
        (spec("RAID1", ["Disk2", "Disk1"], 500), False),
        (spec("RAID1", ["Disk3", "Disk1"]), False),
        (spec("RAID1", DriveSelector(count=2)), True),
        (spec("RAID1", DriveSelector(count=2, media=Media.SSD)), True),
        (spec("RAID1", DriveSelector(count=2, min_size_gib=2000)), False),
    ],
)
def test_a_volume_is_kept_when_level_drives_size_and_name_are_as_asked(wanted: VolumeSpec, is_kept: bool) -> None:
    made = plan(reading(FOUR, [KEPT]), [wanted], delete_others=True)
    assert bool(made.keep) is is_kept
    assert not (made.keep and made.delete)


def test_a_part_of_an_array_is_not_all_its_space() -> None:
    part = volume("1", RaidLevel.RAID1, ["Disk1", "Disk2"], 300)
    made = plan(reading(FOUR, [part]), [spec("RAID1", ["Disk1", "Disk2"])], delete_others=True)
    assert ([v.id for v in made.delete], len(made.make)) == (["1"], 1)


def test_a_wish_with_a_choice_leaves_the_volume_to_the_wish_without_one() -> None:
    held = reading(
        FOUR, [volume("1", RaidLevel.RAID1, ["Disk1", "Disk2"]), volume("2", RaidLevel.RAID1, ["Disk3", "Disk4"])]
    )
    made = plan(held, [spec("RAID1", DriveSelector(count=2)), spec("RAID1", ["Disk1", "Disk2"])])
    assert [(kept.index, kept.volume.id) for kept in made.keep] == [(0, "2"), (1, "1")]
    assert not made.changes


def test_drives_of_others_are_refused_unless_they_may_be_deleted() -> None:
    held = reading(FOUR, [KEPT])
    wanted = [spec("RAID5", ["Disk1", "Disk2", "Disk3"])]
    refused = plan(held, wanted)
    assert messages(refused) == [
        "volumes[0].drives: Disk1 belongs to another volume (1): allow deleteOthers, or name others",
        "volumes[0].drives: Disk2 belongs to another volume (1): allow deleteOthers, or name others",
    ]
    allowed = plan(held, wanted, delete_others=True)
    assert not allowed.faults
    assert [step.act for step in allowed.steps()] == ["delete", "create"]


def test_other_volumes_stay_where_nothing_says_that_they_may_go() -> None:
    made = plan(reading(FOUR, [KEPT]), [spec("RAID1", DriveSelector(count=2))])
    assert [kept.volume.id for kept in made.keep] == ["1"]
    made = plan(reading(FOUR, [KEPT]), [spec("RAID0", DriveSelector(count=2))])
    assert (made.delete, made.make[0].drives) == ((), ("Disk3", "Disk4"))


def test_every_fault_is_told_at_once() -> None:
    wanted = [
        spec("RAID5", ["Disk1", "Disk9"]),
        spec("RAID1", ["Disk3", "Disk3"]),
        spec("RAID0", ["Disk3"], 5000),
        spec("RAID6", DriveSelector(count=4)),
    ]
    told = messages(plan(reading(FOUR), wanted))
    for part in ("at least 3", "no Disk9", "Disk3 is named twice", "Disk3 belongs to volumes[1]",
                 "offers 1000 GiB, not 5000", "volumes[3].drives: 4 are asked for"):  # fmt: skip
        assert any(part in words for words in told), (part, told)


def test_failed_foreign_and_standby_drives_are_not_used() -> None:
    drives = [
        drive("Disk1", state="failed"),
        drive("Disk2", state="foreign"),
        drive("Disk3", spare=SpareKind.GLOBAL),
        drive("Disk4"),
        drive("Disk5"),
    ]
    assert plan(reading(drives), [spec("RAID1", DriveSelector(count=2))]).make[0].drives == ("Disk4", "Disk5")
    told = " ".join(messages(plan(reading(drives), [spec("RAID5", ["Disk1", "Disk2", "Disk3"])])))
    for part in ("Disk1 has failed", "Disk2 holds another controller's configuration", "Disk3 is a global hot spare"):
        assert part in told


TWO = [drive("0", controller="A"), drive("1", controller="A"), drive("0", controller="B"),
       drive("2", 900, controller="B"), drive("3", 900, controller="B")]  # fmt: skip


def test_one_number_on_two_controllers_is_two_drives() -> None:
    made = plan(reading(TWO), [spec("RAID1", ["2", "3"]), spec("RAID1", ["0", "1"])])
    assert [(m.controller, m.drives) for m in made.make] == [("B", ("2", "3")), ("A", ("0", "1"))]
    assert "name the controller" in messages(plan(reading(TWO), [spec("RAID0", ["0"])]))[0]
    assert plan(reading(TWO), [spec("RAID0", ["0"])], controller="B").make[0].controller == "B"
    assert "not all on one controller" in messages(plan(reading(TWO), [spec("RAID1", ["1", "2"])]))[0]


def test_volumes_of_a_controller_that_gets_none_stay() -> None:
    held = reading(
        TWO, [volume("1", RaidLevel.RAID0, ["0"], 900, "A"), volume("1", RaidLevel.RAID0, ["0"], 900, "B")]
    )
    made = plan(held, [spec("RAID1", ["2", "3"])], delete_others=True)
    assert [(v.controller, v.id) for v in made.delete] == [("B", "1")]
    assert "name the one" in messages(plan(held, [], delete_others=True))[0]
    assert [v.controller for v in plan(held, [], delete_others=True, controller="A").delete] == ["A"]


def test_a_controller_that_makes_no_volumes_says_why() -> None:
    hba = RaidController(id="C1", unsuitable="it is in HBA mode: set it to RAID mode")
    for name in ("C1", "any"):
        (told,) = messages(plan(reading(FOUR, controllers=[hba]), [spec("RAID0", ["Disk1"])], controller=name))
        assert "HBA mode: set it to RAID mode" in told
    assert "there is no 'C2'; this machine has C1" in messages(plan(reading(FOUR), [], controller="C2"))[0]


def test_a_level_that_no_controller_offers_is_refused() -> None:
    small = RaidController(id="C1", levels=[RaidLevel.RAID0, RaidLevel.RAID1])
    (told,) = messages(plan(reading(FOUR, controllers=[small]), [spec("RAID5", DriveSelector(count=3))]))
    assert told == "volumes[0].level: RAID5 is not offered: C1 offers RAID0, RAID1"


def test_drives_as_they_are_take_no_place_and_serve_a_wish_for_jbod() -> None:
    raw = volume("Disk1", RaidLevel.JBOD, ["Disk1"], 1000, raw=True)
    held = reading(FOUR, [raw])
    assert [k.volume.id for k in plan(held, [spec("JBOD", ["Disk1"])]).keep] == ["Disk1"]
    made = plan(held, [spec("RAID1", ["Disk1", "Disk2"])], delete_others=True)
    assert (made.delete, made.faults, len(made.make)) == ((), (), 1)


def test_spares_are_free_drives_as_large_as_the_volumes() -> None:
    drives = [*FOUR, drive("Small", 500), drive("Hdd", 1000, Media.HDD)]
    wanted = [spec("RAID1", ["Disk1", "Disk2"], spares=DriveSelector(count=1))]
    made = plan(reading(drives), wanted, hot_spares=["Disk4"])
    assert [(s.drive, s.kind) for s in made.spare] == [("Disk3", SpareKind.DEDICATED), ("Disk4", SpareKind.GLOBAL)]
    told = plan(reading(drives), [spec("RAID1", ["Disk1", "Disk2"], spares=["Small"])])
    assert "as large as its smallest drive" in messages(told)[0]


def test_spares_that_stand_by_already_are_left_alone() -> None:
    drives = [
        drive("Disk1"),
        drive("Disk2"),
        drive("Disk3", spare=SpareKind.DEDICATED),
        drive("Disk4", spare=SpareKind.GLOBAL),
    ]
    held = reading(drives, [volume("1", RaidLevel.RAID1, ["Disk1", "Disk2"], spares=["Disk3"])])
    for spares in (DriveSelector(count=1), ["Disk3"]):
        made = plan(held, [spec("RAID1", ["Disk1", "Disk2"], spares=spares)], hot_spares=DriveSelector(count=1))
        assert (made.changes, made.faults) == (False, ())


def test_a_drive_whose_volume_could_not_be_read_is_not_freed() -> None:
    unread = [drive("Disk1", volumes=["7"]), drive("Disk2")]
    held = RaidReading(controllers=[RaidController(id="C1")], drives=unread)
    (told,) = messages(plan(held, [spec("RAID1", ["Disk1", "Disk2"])], delete_others=True))
    assert "could not be read" in told


# Any plan

sizes = st.sampled_from([480, 482, 960, 4000])
selectors = st.builds(
    DriveSelector,
    count=st.integers(1, 8),
    media=st.sampled_from([None, Media.SSD, Media.HDD]),
    min_size_gib=st.sampled_from([None, 481.0, 900.0]),
    max_size_gib=st.sampled_from([None, 1000.0]),
    not_boot_drive=st.booleans(),
)


@st.composite
def machines(draw: st.DrawFn) -> RaidReading:
    drives: list[RaidDrive] = []
    volumes: list[RaidVolume] = []
    controllers = []
    for controller in draw(st.sampled_from([["A"], ["A", "B"]])):
        levels = draw(st.sampled_from([[], list(RaidLevel), [RaidLevel.RAID0, RaidLevel.RAID1]]))
        controllers.append(RaidController(id=controller, levels=levels))
        own = [
            drive(str(n), draw(sizes), draw(st.sampled_from(Media)), controller, boot=draw(st.booleans()))
            for n in range(draw(st.integers(0, 10)))
        ]
        drives += own
        left = draw(st.permutations([one.id for one in own]))
        while left:
            if draw(st.booleans()):
                break
            level = draw(st.sampled_from(RaidLevel))
            count = draw(st.integers(1, len(left)))
            if layout_fault(level, count) is None:
                name = f"V{len(volumes)}"
                volumes.append(volume(name, level, list(left[:count]), draw(sizes), controller))
                left = left[count:]
    return reading(drives, volumes, controllers)


@st.composite
def wishes(draw: st.DrawFn) -> VolumeSpec:
    explicit = st.lists(st.integers(0, 9).map(str), min_size=1, max_size=8, unique=True)
    return VolumeSpec(
        level=draw(st.sampled_from(RaidLevel)),
        drives=draw(st.one_of(explicit, selectors)),
        size_gib=draw(st.sampled_from(["max", 10.0, 400.0])),
        name=draw(st.sampled_from([None, None, "data", "V0"])),
        spares=draw(st.sampled_from([None, None, DriveSelector(count=1)])),
    )


def carried_out(before: RaidReading, made: Plan) -> RaidReading:
    """The machine after the plan, as a controller would leave it: sizes rounded down a little."""
    gone = {(v.controller, v.id) for v in made.delete}
    volumes = [v for v in before.volumes if (v.controller, v.id) not in gone]
    by_key = {(d.controller, d.id): d for d in before.drives}
    for one in made.make:
        spares = [s.drive for s in made.spare if s.index == one.index]
        smallest = min(by_key[one.controller, name].size_bytes or 0 for name in one.drives)
        most = capacity(one.level, len(one.drives), smallest, one.spans)
        volumes.append(
            RaidVolume(
                id=f"new{one.index}",
                controller=one.controller,
                name=one.name or f"new{one.index}",
                level=one.level,
                size_bytes=int((one.size_bytes or most) * 0.995),
                drives=list(one.drives),
                spares=spares,
            )
        )
    kept = {k.index: (k.volume.controller, k.volume.id) for k in made.keep}
    for spare in made.spare:
        if spare.index in kept:
            volumes = [
                msgspec.structs.replace(v, spares=[*v.spares, spare.drive])
                if (v.controller, v.id) == kept[spare.index]
                else v
                for v in volumes
            ]
    kinds = {(s.controller, s.drive): s.kind for s in made.spare}
    drives = [msgspec.structs.replace(d, spare=kinds.get((d.controller, d.id), d.spare)) for d in before.drives]
    return reading(drives, volumes, before.controllers)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(machines(), st.lists(wishes(), max_size=4), st.booleans(), st.sampled_from(["any", "A"]))
def test_any_plan_is_sound_and_once_carried_out_there_is_nothing_left_to_do(
    before: RaidReading, wanted: list[VolumeSpec], delete_others: bool, controller: str
) -> None:
    made = plan(before, wanted, delete_others, controller=controller)
    assume(not made.faults)
    assert sorted([k.index for k in made.keep] + [m.index for m in made.make]) == list(range(len(wanted)))
    assert delete_others or not made.delete
    deleted = {(v.controller, v.id) for v in made.delete}
    used = Counter((m.controller, name) for m in made.make for name in m.drives)
    used.update((s.controller, s.drive) for s in made.spare)
    for kept in made.keep:
        assert (kept.volume.controller, kept.volume.id) not in deleted
        used.update((kept.volume.controller, name) for name in kept.volume.drives)
    assert not [key for key, times in used.items() if times > 1]
    by_key = {(d.controller, d.id): d for d in before.drives}
    for one in made.make:
        assert len(one.drives) >= FEWEST[one.level]
        free = [by_key[one.controller, name] for name in one.drives]
        assert all((one.controller, name) in deleted for d in free for name in d.volumes)
    after = carried_out(before, made)
    again = plan(after, wanted, delete_others, controller=controller)
    assert (again.faults, again.changes, len(again.keep)) == ((), False, len(wanted))


@settings(max_examples=100, deadline=None)
@given(machines(), st.lists(wishes(), max_size=3), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_in_which_a_bmc_lists_things_changes_no_plan(
    before: RaidReading, wanted: list[VolumeSpec], delete_others: bool, random: object
) -> None:
    shuffled = []
    for items in (before.controllers, before.drives, before.volumes):
        copy: list[object] = list(items)
        random.shuffle(copy)  # type: ignore[attr-defined]
        shuffled.append(copy)
    other = RaidReading(controllers=shuffled[0], drives=shuffled[1], volumes=shuffled[2])  # type: ignore[arg-type]
    assert plan(other, wanted, delete_others) == plan(before, wanted, delete_others)
