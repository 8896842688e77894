"""What a result means: that nothing was done, that a restart is owed."""

import pytest

from protocol.remarks import remarks

RESTART = "power.setPower action=reset restarts it"


def test_a_dry_run_says_that_nothing_was_done() -> None:
    result = {"plan": [{"act": "create"}], "resetOwed": True}
    assert remarks("raid.applyRaid", {"volumes": [], "dryRun": True}, result) == ["dry run: nothing was done"]


@pytest.mark.parametrize(
    ("operation", "result", "told"),
    [
        ("power.getPower", {"state": "on"}, []),
        ("power.setPower", {"state": "on", "changed": True}, []),
        ("power.setPower", {"state": "on", "changed": False}, ["it was so already: nothing was changed"]),
        (
            "bios.setBios",
            {"changed": {"BootMode": "Uefi"}, "pending": {"BootMode": "Uefi"}},
            [f"BootMode waits for a restart of the machine: {RESTART}"],
        ),
        (
            "bios.setBios",
            {"changed": {}, "pending": {"A": 1, "B": 2}},
            [f"A, B wait for a restart of the machine: {RESTART}"],
        ),
        ("bios.setBios", {"changed": {"A": 1}, "pending": {}}, []),
        ("bios.resetBios", {"pending": True}, [f"it takes effect at the next restart of the machine: {RESTART}"]),
        ("boot.setBootOrder", {"order": [], "pending": False}, []),
        (
            "boot.setSecureBoot",
            {"enabled": True, "pending": False},
            [f"it takes effect at the next restart of the machine: {RESTART}"],
        ),
        ("boot.setSecureBoot", {"enabled": True, "pending": True}, []),
        ("boot.setSecureBoot", {"enabled": True, "pending": None}, []),
        (
            "firmware.updateFirmware",
            {"resetOwed": True},
            [f"it is not in force before a restart of the machine: {RESTART}"],
        ),
        (
            "config.replaceCertificate",
            {"resetOwed": True},
            ["the BMC shows it once it is restarted: management.resetBmc does so"],
        ),
        (
            "raid.applyRaid",
            {"resetOwed": True, "waiting": [{"act": "create"}]},
            [
                f"it is not in force before a restart of the machine: {RESTART}",
                "what is in `waiting` can only begin after that restart: ask again then",
            ],
        ),
    ],
)
def test_what_is_still_owed_is_told(operation: str, result: dict[str, object], told: list[str]) -> None:
    assert remarks(operation, {}, result) == told
