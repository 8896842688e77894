"""Recorded machines and programs are inputs of the inspector's tests: none lies there unread."""

from pathlib import Path

import pytest


def test_every_recorded_file_is_an_input_of_a_test(shared: Path) -> None:
    recorded = shared / "mockups" / "inband"
    if not recorded.is_dir():
        pytest.skip(f"no recorded machines at {recorded}")
    words = "".join(module.read_text(encoding="utf-8") for module in Path(__file__).parent.glob("test_*.py"))
    unread = []
    for file in recorded.rglob("*.*"):
        name = file.relative_to(recorded).as_posix()
        of_a_machine = file.name == "lshw.json" or file.name.startswith("dmidecode")
        # What describes a machine as a whole is read by `Recorded`.
        if f'recorded("{file.parent.name}")' not in words if of_a_machine else name not in words:
            unread.append(name)
    assert unread == []
