"""The specification's checklist, line by line: which tests prove a line, and whether they pass.

    python -m tests.acceptance              the table, and what it comes to
    python -m tests.acceptance -k engine    further words go to pytest

Tests name their lines by `@pytest.mark.line("A23")`. Fails when a line of a part that is built has no passing test,
or a failing one.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping

import pytest

PARTS: Mapping[str, int] = {"A": 53, "B": 10, "C": 26}
"""How many lines each part of the checklist has."""
BUILT = ("A", "B")


class Ledger:
    """A pytest plugin that notes what became of each test that names a line."""

    def __init__(self) -> None:
        self.lines: defaultdict[str, set[str]] = defaultdict(set)
        """By line, the ids of its tests."""
        self.outcomes: dict[str, str] = {}
        """By test, `passed`, `failed` or `skipped`."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        named = [item for item in items if item.get_closest_marker("line") is not None]
        config.hook.pytest_deselected(items=[item for item in items if item not in named])
        items[:] = named
        for item in named:
            for mark in item.iter_markers("line"):
                self.lines[mark.args[0]].add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            worse = self.outcomes.get(report.nodeid) == "failed" or report.failed
            self.outcomes[report.nodeid] = "failed" if worse else report.outcome

    def proves(self, line: str) -> bool:
        """At least one test has passed, and none has failed."""
        outcomes = [self.outcomes.get(test, "not run") for test in self.lines.get(line, ())]
        return "passed" in outcomes and "failed" not in outcomes and "not run" not in outcomes

    def unknown_lines(self) -> list[str]:
        """Lines that tests name and the checklist does not have."""
        return sorted(self.lines.keys() - set(all_lines()))


def all_lines() -> Iterable[str]:
    """A01, A02, and so on."""
    return (f"{part}{number:02}" for part, count in PARTS.items() for number in range(1, count + 1))


def table(ledger: Ledger) -> list[str]:
    """One row for each line; below it each of its test functions, with what its cases came to."""
    rows = []
    for line in all_lines():
        tests = ledger.lines.get(line, set())
        if not tests:
            rows.append(f"{line}  {'NO TEST' if line[0] in BUILT else 'not built yet'}")
            continue
        rows.append(f"{line}  {'passed' if ledger.proves(line) else 'FAILED'}")
        cases: defaultdict[str, list[str]] = defaultdict(list)
        for test in tests:
            cases[test.partition("[")[0]].append(ledger.outcomes.get(test, "not run"))
        for function, outcomes in sorted(cases.items()):
            counts = ", ".join(f"{outcomes.count(word)} {word}" for word in sorted(set(outcomes)))
            rows.append(f"       {function} ({counts})")
    return rows


def summary(ledger: Ledger) -> str:
    """`A 53/53 B 10/10 C 0/26`"""
    proved = {part: sum(ledger.proves(line) for line in all_lines() if line[0] == part) for part in PARTS}
    return " ".join(f"{part} {proved[part]}/{count}" for part, count in PARTS.items())


def main(words: list[str]) -> int:
    """The exit code: 0 when every line that is built is proved."""
    ledger = Ledger()
    # Only as much of pytest's own report as tells why something failed.
    pytest.main(["-q", "--no-header", *words], plugins=[ledger])
    unknown = [f"{line}  is no line of the checklist" for line in ledger.unknown_lines()]
    sys.stdout.write("\n".join(["", *table(ledger), *unknown, summary(ledger)]) + "\n")
    missing = [line for line in all_lines() if line[0] in BUILT and not ledger.proves(line)]
    return 1 if missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
