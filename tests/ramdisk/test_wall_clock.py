"""A clock that no certificate holds by is set from the control plane's own answer."""

import asyncio
import time
from pathlib import Path

import pytest

from agent.endpoint import Endpoint
from ramdisk.wall_clock import correct_clock
from tests.agent.tls_control_plane import control_plane


async def test_a_clock_that_is_far_off_is_set_to_the_control_planes(tmp_path: Path) -> None:
    now = time.time()
    told: list[float] = []
    async with control_plane(tmp_path) as plane:
        endpoint = Endpoint.parse(plane.url)
        wrong_by = await asyncio.to_thread(correct_clock, endpoint, told.append, lambda: now - 10 * 86_400)
    assert wrong_by == pytest.approx(10 * 86_400, abs=60)
    assert told == [pytest.approx(now, abs=60)]


async def test_a_clock_that_is_right_is_left_alone(tmp_path: Path) -> None:
    told: list[float] = []
    async with control_plane(tmp_path) as plane:
        assert await asyncio.to_thread(correct_clock, Endpoint.parse(plane.url), told.append) is None
    assert told == []


def test_without_an_answer_nothing_is_set() -> None:
    told: list[float] = []
    assert correct_clock(Endpoint("127.0.0.1", 9), told.append) is None
    assert told == []
