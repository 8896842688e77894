"""The watch list as the control plane sends it: put together from its parts, and compared with the one before."""

from typing import NamedTuple

from protocol.frames import WatchedNode, WatchList

__all__ = ["Difference", "Parts", "difference"]


class Difference(NamedTuple):
    """What a new list changes. A machine that is reached in another way is in `gone` and in `come`."""

    come: list[WatchedNode]
    gone: list[str]


class Parts:
    """Collects the parts of a list. One whose version changes in the middle is begun anew."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._nodes: dict[str, WatchedNode] = {}

    def take(self, frame: WatchList) -> dict[str, WatchedNode] | None:
        """The whole list, by node, once its last part is there."""
        if frame.version != self._version:
            self._version, self._nodes = frame.version, {}
        self._nodes |= {node.node_id: node for node in frame.nodes}
        if frame.more:
            return None
        whole, self._version, self._nodes = self._nodes, None, {}
        return whole


def difference(before: dict[str, WatchedNode], now: dict[str, WatchedNode]) -> Difference:
    gone = [node_id for node_id, node in before.items() if now.get(node_id) != node]
    come = [node for node_id, node in now.items() if before.get(node_id) != node]
    return Difference(come, gone)
