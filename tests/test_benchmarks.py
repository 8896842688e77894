"""The benchmarks' runner; the figures themselves are for `make bench`."""

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from benchmarks import Figure, __main__


def steps() -> Iterator[Figure]:
    yield Figure("a.steps", 2.0, "steps/s", "a peer", 1.0, 2.0)
    raise RuntimeError("the second database is not there")


def memory() -> list[Figure]:
    return [Figure("b.memory", 3, "MiB", "-")]


@pytest.fixture(autouse=True)
def two_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "MODULES", {"a.steps": "bench_steps", "b.memory": "bench_memory"})
    for name, run in (("bench_steps", steps), ("bench_memory", memory)):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(run=run))


def test_a_failing_benchmark_keeps_no_other_figure_from_being_printed(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert __main__.main([]) == 1
    out, err = capfdbinary.readouterr()
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["a.steps", "b.memory"]
    assert b"the second database is not there" in err
    assert b"1 of 2 benchmarks failed: a.steps" in err


def test_the_beginning_of_a_name_chooses_its_benchmarks(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert __main__.main(["b"]) == 0
    assert json.loads(capfdbinary.readouterr().out) == {"name": "b.memory", "value": 3, "unit": "MiB", "peer": "-"}


def test_a_name_that_no_benchmark_has_is_told_with_those_that_there_are(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert __main__.main(["c"]) == 2
    assert b"there are a.steps, b.memory" in capfdbinary.readouterr().err
