"""A workflow in words: table rows, lines, and what changed between two looks. Text only, from the API's JSON."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from protocol.errors import BmcMessage, unquoted
from protocol.presentation import Fields, Part, Table, printable

__all__ = ["COLUMNS", "ENDED", "causes", "changes", "headline", "line_of", "overview", "span", "step_rows", "window"]

ENDED = ("succeeded", "failed", "cancelled")
COLUMNS = ("phase", "step", "action", "where", "state", "attempt", "elapsed", "news")
_QUIET = ("pending", "skipped", "cancelled")

Json = Mapping[str, Any]


def headline(workflow: Json) -> str:
    """One line: which workflow, and how it stands."""
    ending = f", {workflow['ending']}" if workflow["ending"] else ""
    step = f", at {printable(workflow['stepId'])}" if workflow["stepId"] else ""
    return f"{workflow['id']}: {workflow['state']}{ending}{step}, {span(workflow['elapsedMs'])}"


def step_rows(workflow: Json) -> list[list[str]]:
    """One row a step, by `COLUMNS`; once it has ended, on-failure and clean-up rows only where they were owed."""
    ended = workflow["state"] in ENDED
    return [
        [
            step["phase"],
            printable(step["id"]),
            printable(step["action"]),
            step["runsOn"],
            step["state"],
            _attempt(step),
            span(step["elapsedMs"]),
            _news(step),
        ]
        for step in workflow["steps"]
        if not (ended and step["phase"] != "main" and step["state"] in _QUIET)
    ]


def window(workflow: Json, most: int) -> list[list[str]]:
    """`step_rows`, or as many of them as there is room for, around the step under way (else the last that ended)."""
    rows = step_rows(workflow)
    if len(rows) <= most:
        return rows
    at = max((index for index, row in enumerate(rows) if row[4] != "pending"), default=0)
    at = next((index for index, row in enumerate(rows) if row[4] in ("running", "waiting")), at)
    shown = max(1, most - 2)
    first = min(max(0, at - shown // 2), len(rows) - shown)
    before, after = first, len(rows) - first - shown
    blank = [""] * (len(COLUMNS) - 1)
    return [
        *([[f"… {before}", *blank]] if before else []),
        *rows[first : first + shown],
        *([[f"… {after}", *blank]] if after else []),
    ]


def overview(workflow: Json) -> list[Part]:
    """All of it, to be shown once."""
    facts = [
        ("id", workflow["id"]),
        ("node", workflow["nodeId"] or "-"),
        ("profile", f"{workflow['profileId']} version {workflow['profileVersion']}"),
        ("state", workflow["state"] + (f" ({workflow['ending']})" if workflow["ending"] else "")),
        ("step", printable(workflow["stepId"] or "-")),
        ("created", workflow["createdAt"]),
        ("finished", workflow["finishedAt"] or "-"),
        ("took", span(workflow["elapsedMs"])),
    ]
    facts += [("error" if index == 0 else "", text) for index, text in enumerate(causes(workflow["error"]))]
    return [Fields("", facts), Table("steps", list(COLUMNS), step_rows(workflow))]


def causes(error: Json | None) -> list[str]:
    """Why, from the outside in: the engine's words, the agent's, the BMC's own."""
    if error is None:
        return []
    lines = [f"{error['code']}: {printable(error['message'])}"]
    details = error.get("details")
    if details is not None:
        own = f"{details['code']}: {printable(details['message'])}"
        if own not in lines[0]:
            lines.append(own)
        said = msgspec.convert(details.get("bmc", []), list[BmcMessage])
        lines += [f"the BMC said: {printable(str(each))}" for each in unquoted("\n".join(lines), said)]
        advice = dict.fromkeys(each.resolution for each in said if each.resolution)
        lines += [f"the BMC advises: {printable(words)}" for words in advice]
    return lines


def changes(before: Json | None, after: Json) -> Iterator[dict[str, Any]]:
    """One event for the workflow where its state, its ending or its step changed, and one for each changed step.

    What came and went between two looks is not among them; every end is.
    """
    if before is None or _standing(before) != _standing(after):
        yield {
            "event": "workflow",
            "workflowId": after["id"],
            "nodeId": after["nodeId"],
            **{name: after[name] for name in ("state", "ending", "stepId", "error", "elapsedMs")},
        }
    earlier = {} if before is None else {step["seq"]: step for step in before["steps"]}
    for step in after["steps"]:
        old = earlier.get(step["seq"])
        unmoved = step["state"] == "pending" if old is None else _moment(old) == _moment(step)
        if not unmoved:
            shown = ("phase", "action", "runsOn", "state", "attempt", "attempts", "commandId", "deadline")
            yield {
                "event": "step",
                "workflowId": after["id"],
                "stepId": step["id"],
                **{name: step[name] for name in (*shown, "result", "error", "elapsedMs", "progress")},
            }


def line_of(event: Json) -> str:
    """An event of `changes` as a line."""
    if event["event"] == "workflow":
        ending = f" ({event['ending']})" if event["ending"] else ""
        return f"workflow {event['state']}{ending}"
    attempt = f", attempt {event['attempt']} of {event['attempts']}" if event["attempts"] > 1 else ""
    elapsed = f" after {span(event['elapsedMs'])}" if event["state"] in ("succeeded", "failed") else ""
    news = _news(event)
    return (
        f"{event['phase']}: {printable(event['stepId'])} ({printable(event['action'])} on {event['runsOn']}) "
        f"{event['state']}{elapsed}{attempt}{': ' + news if news else ''}"
    )


def span(milliseconds: int | None) -> str:
    """`1:02:03`, `2:03`, `0.4 s`; `-` for none."""
    if milliseconds is None:
        return "-"
    if milliseconds < 10_000:
        return f"{milliseconds / 1000:.1f} s"
    seconds = milliseconds // 1000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def _news(step: Json) -> str:
    """Its failure's cause; while it is not over, how far its command is, and why the last attempt failed."""
    cause = "; ".join(causes(step["error"]))
    if step["state"] not in ("pending", "running", "waiting"):
        return cause
    news = [_how_far(step["progress"])] if step["progress"] is not None and step["state"] != "pending" else []
    return "; ".join([*news, *([f"attempt {step['attempt'] - 1} failed: {cause}"] if cause else [])])


def _how_far(progress: Json) -> str:
    percent = "" if progress["percent"] is None else f"{progress['percent']:.0f} % "
    return f"{percent}{printable(progress['message'])}"


def _attempt(step: Json) -> str:
    if step["startedAt"] is None and step["attempt"] == 1:
        return "-"
    return f"{step['attempt']} of {step['attempts']}" if step["attempts"] > 1 else str(step["attempt"])


def _standing(workflow: Json) -> tuple[object, ...]:
    return workflow["state"], workflow["ending"], workflow["stepId"], workflow["error"]


def _moment(step: Json) -> tuple[object, ...]:
    return step["state"], step["attempt"], step["commandId"], step["error"], step["progress"]
