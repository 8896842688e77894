"""Pinned certificates that were replaced: whoever pins one learns of it later than the process that did it.

Beside the certificates taken on first use (`host:port` → SHA-256) the pins say which certificate stands for another
now. A BMC that shows the pinned one itself is always right: somebody went back to it.
"""

from collections.abc import MutableMapping

__all__ = ["follow_pin", "pinned_now", "return_to_pin"]

_LONGEST_SUCCESSION = 64


def pinned_now(pins: MutableMapping[str, str], endpoint: str, pin: str) -> str:
    """The certificate that stands for a pin: the pinned one, or the one that it was replaced by since."""
    for _ in range(_LONGEST_SUCCESSION):
        successor = pins.get(_successor_key(endpoint, pin))
        if successor is None:
            break
        pin = successor
    return pin


def follow_pin(pins: MutableMapping[str, str], endpoint: str, pin: str, fingerprint: str) -> None:
    """Lets another certificate stand for a pin from here on."""
    last = pinned_now(pins, endpoint, pin)
    # The new one begins where it ends: a certificate that comes back must not lead in a circle.
    return_to_pin(pins, endpoint, fingerprint)
    if last != fingerprint:
        pins[_successor_key(endpoint, last)] = fingerprint


def return_to_pin(pins: MutableMapping[str, str], endpoint: str, pin: str) -> None:
    """The pinned certificate stands for itself again."""
    if _successor_key(endpoint, pin) in pins:
        del pins[_successor_key(endpoint, pin)]


def _successor_key(endpoint: str, fingerprint: str) -> str:
    return f"{endpoint} after {fingerprint}"
