"""What is known of a command that has not ended, in one line."""

from collections.abc import Mapping
from typing import Any

from protocol.presentation import printable
from rackwright.time_words import moment

__all__ = ["news_of", "progress_words"]


def news_of(command: Mapping[str, Any]) -> str:
    """Whom it waits for, or how far it is. From the API's JSON, as `commands.get` gives it."""
    agent, state = command.get("agent"), command["state"]
    who = _called(agent)
    away = _away(agent)
    if state == "queued":
        news = f"waiting for {who}{', ' + away if away else ' to take it'}"
    elif state == "delivered":
        news = f"{who} has it, and {'is ' + away if away else 'waits for its turn at the machine'}"
    elif away:
        news = f"under way, without news: {who} is {away}"
    else:
        news = progress_words(command.get("progress")) or "under way"
    return f"{news}; it is to be stopped" if command.get("cancelReason") else news


def progress_words(progress: Mapping[str, Any] | None) -> str:
    """`writing 42 %`; empty for none."""
    if progress is None:
        return ""
    share = "" if progress["percent"] is None else f" {progress['percent']:.0f} %"
    return f"{printable(progress['message'])}{share}"


def _called(agent: Mapping[str, Any] | None) -> str:
    if agent is None:
        return "its agent"
    if agent["site"] is None:
        return f"the agent on the machine itself ({printable(agent['hostName'])})"
    return f"the agent of site {printable(agent['site'])}"


def _away(agent: Mapping[str, Any] | None) -> str:
    """Empty where it is there, as far as is known."""
    if agent is None or agent["connected"]:
        return ""
    since = agent["since"]
    return "away since it joined" if since is None else f"away since {moment(since)}"
