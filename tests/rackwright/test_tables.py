"""Lists of the API as tables: no raw objects, no milliseconds, and what matters first."""

from datetime import UTC, datetime
from typing import Any

from rackwright.tables import facts_of, table_of, word

NOW = datetime(2026, 11, 30, 2, 20, 0, tzinfo=UTC)


def node(**more: Any) -> dict[str, Any]:
    return {
        "name": "r1",
        "id": "node_1",
        "site": "lab",
        "state": "available",
        "power": "on",
        "health": "ok",
        "seenAt": "2026-11-30T02:17:00Z",
        "watched": True,
        "trouble": None,
        "troubleSince": None,
        "bmc": {"address": "https://192.0.2.1", "driver": "redfish", "credentialRef": "lab/r1", "tls": "verify"},
        "labels": {"row": "7"},
        **more,
    }


def row(item: dict[str, Any], verb: str = "nodes.list") -> dict[str, str]:
    table = table_of(verb, [item], NOW)
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_a_node_is_told_by_its_site_s_name_and_its_bmc_by_its_address() -> None:
    told = row(node())
    assert (told["site"], told["bmc"], told["labels"]) == ("lab", "https://192.0.2.1", "row=7")
    assert (told["since"], told["watched"], told["trouble"]) == ("3 min ago", "yes", "-")


def test_a_node_in_trouble_tells_what_kind_and_for_how_long() -> None:
    told = row(
        node(seenAt=None, power="unknown", trouble="UNREACHABLE: no route", troubleSince="2026-11-30T02:08:00Z")
    )
    assert (told["since"], told["trouble"]) == ("-", "UNREACHABLE for 12 min")


def test_a_command_tells_its_error_or_how_far_it_is() -> None:
    command = {
        "id": "cmd_1",
        "operation": "bios.setBios",
        "state": "running",
        "createdAt": "2026-11-30T02:17:00Z",
        "finishedAt": None,
        "nodeId": "node_1",
        "error": None,
        "progress": {"message": "setting\x1b BootMode", "percent": 42.4},
    }
    told = row(command, "commands.list")
    assert (told["error or news"], told["took"]) == ("setting\\x1b BootMode 42 %", "-")
    ended = {"finishedAt": "2026-11-30T02:18:30Z", "error": {"code": "BMC_ERROR", "message": "no"}, "progress": None}
    told = row({**command, **ended}, "commands.list")
    assert (told["error or news"], told["took"]) == ("BMC_ERROR", "1 min")


def test_a_list_of_another_verb_has_all_its_fields_and_an_empty_one_says_so() -> None:
    assert table_of("things.list", [{"a": 1, "b": None}], NOW).rows == [["1", "-"]]
    assert table_of("nodes.list", [], NOW).columns == ["none"]


def test_no_cell_is_a_raw_object() -> None:
    assert word({"a": {"b": [1, 2]}, "c": True, "d": None}) == "a=b=2 c=yes"
    assert word(["x", "y"]) == "x y"


def test_an_event_tells_its_errors_words_and_not_its_subject_again() -> None:
    error = {"code": "BMC_ERROR", "message": "refused", "bmc": [{"id": "x", "text": "y"}]}
    event = {"subject": "command/cmd_1", "data": {"commandId": "cmd_1", "nodeId": "node_1", "error": error}}
    assert facts_of(event) == "nodeId=node_1 error=BMC_ERROR: refused"
