"""What `/metrics` tells. Labels are verbs, statuses and states only: their number is fixed."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from control_plane.engine.gauges import Sample
from control_plane.engine.tally import TALLY, Tally
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

    def watch_engine(self, last: Callable[[], Sample], tally: Tally = TALLY) -> None:
        """Shows the engine too: what this process did, and what is under way in the whole database."""
        self._registry.register(_EngineCollector(last, tally))

    def watch_observations(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Shows what this worker's agents have told of the machines, and what of it was new."""
        self._registry.register(_ObservationCollector(counts))

    def command_seen(self, row: CommandRow) -> None:
        self.commands.labels(row.state.value).inc()

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(self, last: Callable[[], Sample], tally: Tally) -> None:
        self._last = last
        self._tally = tally

    def collect(self) -> Iterable[Metric]:
        workflows, steps = self._tally.snapshot()
        yield _family("rackwright_workflows", "Workflow events made durable by this worker", "event", workflows)
        yield _family("rackwright_workflow_steps", "Step events made durable by this worker", "outcome", steps)
        yield from _gauges(self._last())


class _ObservationCollector(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        yield _family(
            "rackwright_node_observations",
            "States of machines that agents told (received), that were new (stored), and changes of power and health",
            "what",
            self._counts(),
        )


def _family(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _gauges(last: Sample) -> Iterator[Metric]:
    active = GaugeMetricFamily(
        "rackwright_workflows_active", "Active workflows in the whole database", labels=["state"]
    )
    for state, count in last.active.items():
        active.add_metric([state], count)
    yield active
    yield GaugeMetricFamily(
        "rackwright_workflows_due_lag_seconds",
        "How long the workflow that has waited longest has been due",
        value=last.due_lag_ms / 1000,
    )
