"""Permission patterns."""

import itertools

import pytest

from control_plane.permissions import allows, covers, pattern_fault

PATTERNS = ["*", "compute:*", "compute:nodes:*", "compute:nodes:read", "compute:*:read", "compute:*:*"]
ACTIONS = [f"compute:{group}:{right}" for group in ("nodes", "sites") for right in ("read", "manage")] + ["other:a:b"]


@pytest.mark.parametrize(
    ("pattern", "action", "allowed"),
    [
        ("*", "compute:nodes:read", True),
        ("compute:nodes:*", "compute:nodes:manage", True),
        ("compute:nodes:*", "compute:sites:manage", False),
        ("compute:*:read", "compute:sites:read", True),
        ("compute:*:read", "compute:sites:manage", False),
        ("compute:nodes:read", "compute:nodes:read", True),
        ("compute:nodes:read", "compute:nodes:readall", False),
        ("compute:nodes", "compute:nodes:read", False),
        ("compute:join-tokens:*", "compute:join-tokens:read", True),
    ],
)
def test_a_pattern_allows_what_it_matches(pattern: str, action: str, allowed: bool) -> None:
    assert allows([pattern], action) is allowed


def test_nothing_is_allowed_without_a_pattern() -> None:
    assert not allows([], "compute:nodes:read")


@pytest.mark.parametrize(("own", "wanted"), list(itertools.product(PATTERNS, PATTERNS)))
def test_a_pattern_that_is_covered_allows_nothing_more(own: str, wanted: str) -> None:
    more = [action for action in ACTIONS if allows([wanted], action) and not allows([own], action)]
    assert (covers([own], [wanted]) == []) == (more == [])


@pytest.mark.parametrize("pattern", ["*", "compute:*", "compute:*:read", "compute:join-tokens:manage"])
def test_a_sound_pattern_has_no_fault(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["", "compute", "compute:nodes", "compute:nodes:re*", "a:b:c:d", "Compute:*", "x\n"]
)
def test_a_pattern_that_would_match_nothing_is_refused(pattern: str) -> None:
    assert pattern_fault(pattern) is not None
