"""What is true of a command now reaches the control plane, at a pace that a link bears."""

import asyncio

import pytest

from agent import progress_news
from agent.progress_news import ProgressNews
from protocol.frames import Progress


@pytest.fixture
def wakes() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture(autouse=True)
def short_spacing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_news, "_SPACING", 0.05)


def news(message: str, percent: float | None = None, of: str = "cmd_1") -> Progress:
    return Progress(id=of, message=message, percent=percent)


async def test_what_comes_too_soon_is_told_later_and_only_the_newest_of_it(wakes: asyncio.Event) -> None:
    told = ProgressNews(wakes.set)
    told.add(news("sending", 0))
    assert told.take() == news("sending", 0)
    wakes.clear()
    told.add(news("sending", 50))
    told.add(news("the BMC works"))
    assert (told.take(), wakes.is_set()) == (None, False)
    await asyncio.wait_for(wakes.wait(), 10)
    assert told.take() == news("the BMC works")
    assert told.take() is None


async def test_news_that_repeat_themselves_are_told_once(wakes: asyncio.Event) -> None:
    told = ProgressNews(wakes.set)
    for _ in range(3):
        told.add(news("busy"))
    assert (told.take(), told.take()) == (news("busy"), None)
    told.add(news("busy"))
    assert told.take() is None


async def test_commands_do_not_wait_for_each_other(wakes: asyncio.Event) -> None:
    told = ProgressNews(wakes.set)
    told.add(news("a"))
    told.add(news("b", of="cmd_2"))
    assert [told.take(), told.take()] == [news("a"), news("b", of="cmd_2")]


async def test_a_new_connection_is_told_what_is_true_now(wakes: asyncio.Event) -> None:
    told = ProgressNews(wakes.set)
    told.add(news("a"))
    told.add(news("b", of="cmd_2"))
    assert told.take() is not None
    told.end("cmd_2")
    wakes.clear()
    told.tell_anew()
    assert wakes.is_set()
    assert (told.take(), told.take()) == (news("a"), None)


async def test_of_a_command_that_has_ended_nothing_more_is_told(wakes: asyncio.Event) -> None:
    told = ProgressNews(wakes.set)
    told.add(news("a"))
    told.take()
    told.add(news("b"))
    told.end("cmd_1")
    wakes.clear()
    await asyncio.sleep(0.1)
    assert (told.take(), wakes.is_set()) == (None, False)
