"""Each real-world case has tests that bear its number, in their mark and in a name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
FOLDERS = ("agent", "control_plane", "drivers", "e2e", "ramdisk", "simulators")
CASES = [
    f"B{number:02}"
    for number in (
        *(1, 2, 3, 4, 5, 7, 8, 10, 12, 14, 15, 17, 18, 19, 21),
        *(23, 24, 25, 26, 28, 29, 30, 32, 34, 35, 37),
        *(39, 41, 42, 43, 44, 46),
        *(47, 49, 50, 51, 52, 53, 55, 56, 58, 59),
    )
]
"""The driver suite's, and from B47 on those of the way from bare metal to a running system."""


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((TESTS / folder).rglob("test_*.py"))


def marked(module: Path, kind: str = "case") -> Iterator[tuple[str, str]]:
    """Each case that a test of the module names in a mark, with the test's own name. `kind`: of the mark."""
    tree = ast.parse(module.read_text(encoding="utf-8"), str(module))
    for_all = [node.value for node in tree.body if isinstance(node, ast.Assign) and is_pytestmark(node)]
    for node in each_test(tree):
        for mark in (*node.decorator_list, *for_all):
            yield from ((case, node.name) for case in named_by(mark, kind))


def each_test(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def named_by(mark: ast.expr, kind: str) -> list[str]:
    return [
        word.value
        for call in ast.walk(mark)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == kind
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    ]


@pytest.fixture(scope="module")
def tests_by_case() -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules():
        for case, name in marked(module):
            found[case].add(name)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_a_test_that_is_named_after_it(case: str, tests_by_case: dict[str, set[str]]) -> None:
    prefix = f"test_{case.lower()}"
    assert [name for name in tests_by_case[case] if re.match(rf"{prefix}[a-z]?_", name)], f"no test {prefix}_…"


def test_no_test_bears_a_number_that_is_no_case(tests_by_case: dict[str, set[str]]) -> None:
    assert {case for case in tests_by_case if not re.fullmatch(r"B(0[1-9]|[1-5][0-9])", case)} == set()


def test_a_test_that_is_named_after_a_case_is_marked_with_it(tests_by_case: dict[str, set[str]]) -> None:
    unmarked = []
    for module in modules():
        # The lines of the specification's checklist have such numbers too.
        lines = set(marked(module, "line"))
        for node in each_test(ast.parse(module.read_text(encoding="utf-8"))):
            numbered = re.match(r"test_(b\d\d)[a-z]?_", node.name)
            case = numbered[1].upper() if numbered else ""
            if case and node.name not in tests_by_case.get(case, ()) and (case, node.name) not in lines:
                unmarked.append(f"{module.name}: {node.name}")
    assert unmarked == []
