"""The rooms of the house: who may import whom, and how large a module may grow."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ANYTHING = None
MAY_IMPORT: dict[str, set[str] | None] = {
    "protocol": set(),
    "drivers": {"protocol"},
    "agent": {"protocol", "drivers"},
    "control_plane": {"protocol"},
    "ramdisk": {"agent", "drivers", "protocol"},
    "simulators": set(),
    "rackwright": ANYTHING,
}
LARGEST_MODULE = 500
ROOMS = [room for room in MAY_IMPORT if (REPOSITORY / room).is_dir()]


def modules_of(room: str) -> list[Path]:
    return sorted((REPOSITORY / room).rglob("*.py"))


def imported_rooms(module: Path) -> Iterator[tuple[str, int]]:
    """Each room that the module imports, wherever in its text, also where `import_module` is given its name."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"), str(module))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        for name in names:
            room = name.partition(".")[0]
            if room in MAY_IMPORT:
                yield room, getattr(node, "lineno", 0)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_downwards_only(room: str) -> None:
    allowed = MAY_IMPORT[room]
    if allowed is ANYTHING:
        return
    wrong = [
        f"{module.relative_to(REPOSITORY)}:{line} imports {other}"
        for module in modules_of(room)
        for other, line in imported_rooms(module)
        if other != room and other not in allowed
    ]
    assert wrong == []


def test_nothing_but_the_face_imports_the_simulators() -> None:
    importers = {
        room
        for room in ROOMS
        for module in modules_of(room)
        for other, _ in imported_rooms(module)
        if other == "simulators"
    }
    assert importers <= {"simulators", "rackwright"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for(room: str) -> None:
    text = (REPOSITORY / room / "__init__.py").read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{room}/__init__.py has no docstring"


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_of_a_room_is_a_package(room: str) -> None:
    folders = {module.parent for module in modules_of(room)}
    assert [str(folder.relative_to(REPOSITORY)) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_is_too_long_to_be_read_at_one_sitting(room: str) -> None:
    lengths = {
        str(module.relative_to(REPOSITORY)): len(module.read_text(encoding="utf-8").splitlines())
        for module in modules_of(room)
    }
    assert {name: length for name, length in lengths.items() if length > LARGEST_MODULE} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_modules_are_named_by_what_they_are_about(room: str) -> None:
    # A Redfish Manager is a thing of its own: the BMC.
    vague = re.compile(r"(^|_)(utils?|helpers?|managers|.+_manager)(_|$)")
    assert [module.name for module in modules_of(room) if vague.search(module.stem)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_is_left_to_be_done_later(room: str) -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
    found = [
        f"{module.relative_to(REPOSITORY)}:{number}"
        for module in modules_of(room)
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("room", ROOMS)
def test_the_tests_mirror_the_rooms(room: str) -> None:
    assert list((REPOSITORY / "tests" / room).rglob("test_*.py")), f"tests/{room} has no test"
