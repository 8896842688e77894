"""What `/metrics` tells. Labels are verbs, statuses and states only: their number is fixed."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from control_plane.records import CommandRow

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """One process's counters, in a registry of their own."""

    def __init__(self, connected_agents: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "rackwright_api_requests", "API requests", ["verb", "status"], registry=self._registry
        )
        self.request_seconds = Histogram(
            "rackwright_api_request_seconds",
            "How long an API request took, its waiting included",
            ["verb"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.commands = Counter(
            "rackwright_commands", "Commands that reached a state, as seen here", ["state"], registry=self._registry
        )
        self.store_seconds = Histogram(
            "rackwright_store_seconds",
            "How long a transaction of the API took, its waiting for the disk included",
            ["kind"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.streams = Gauge("rackwright_event_streams", "Open event streams", registry=self._registry)
        agents = Gauge("rackwright_connected_agents", "Agents connected to this worker", registry=self._registry)
        agents.set_function(lambda: float(connected_agents()))

    def command_seen(self, row: CommandRow) -> None:
        self.commands.labels(row.state.value).inc()

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)
