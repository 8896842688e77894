"""The report of `bmc qualify` as a file: what was asked, when, and the exact result, as JSON."""

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from protocol.errors import Issue

__all__ = ["faults_of", "report_text", "save_report"]


def faults_of(file: Path) -> list[Issue]:
    """Why no report can be saved there, found before a BMC is asked."""
    if file.is_dir():
        return [Issue("--save", f"{file} is a folder", "name a file in it")]
    folder = file.parent
    if not folder.is_dir():
        return [Issue("--save", f"there is no folder {folder}", "make it, or name another file")]
    if not os.access(folder, os.W_OK):
        return [Issue("--save", f"nothing can be written in {folder}", "name a file elsewhere")]
    return []


def report_text(result: Mapping[str, object], address: str, at: datetime) -> str:
    """The report: `address` and `takenAt` (RFC 3339) before the result's own fields. It holds no secret."""
    report = {"address": address, "takenAt": at.isoformat(timespec="seconds"), **result}
    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"


def save_report(file: Path, text: str) -> None:
    """Writes the file whole or not at all; one that is there is replaced. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
            os.fchmod(opened.fileno(), 0o644)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
