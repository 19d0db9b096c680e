"""Metrics of requests: time by API and phase, errors by API, traffic by client id. [P]

Both edges count here. What is kept per API (`ApiTimes`) and per client (`ClientTraffic`) is looked up once per route
or connection; a request costs additions of floats and one bucket of a histogram.

Phases of a request:

* queue: complete in the broker, and waits for its turn of the event loop
* local: parsed, handled, appended or read, encoded
* replication: waits until in-sync replicas have a write, or until it is flushed
* remote: waits for the controller, etcd or another coordinator
* poll: waits because the client asked to wait: for new records, or for other members of a group
* throttle: waits because a quota is exceeded
* send: until the socket takes a response that it does not take at once

The latency (`ottla_request_seconds`) is from the complete request to its response without poll and throttle, so that a
slow fetch is one that the broker made slow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain

from ottla_broker.exposed import OTHER, SECONDS_BOUNDS, Family, Histogram, Sample

PHASES = ("queue", "local", "replication", "remote", "poll", "throttle", "send")
#: What an API waits for, if it waits.
_WAITS = {
    "Produce": "replication",
    "OffsetCommit": "replication",
    "CommitOffsets": "replication",
    "TxnOffsetCommit": "replication",
    "DeleteRecords": "replication",
    "Fetch": "poll",
    "JoinGroup": "poll",
    "SyncGroup": "poll",
}
#: Distinct (API, error) pairs; the limit only guards against a bug.
_ERRORS_MAX = 2000
#: Label value of clients without a client id.
NONE = "(none)"
#: Longer client ids are cut.
_CLIENT_ID_CHARS = 128


def api_name(method: str) -> str:
    """`ListOffsets` for `list_offsets`: Kafka's name, on both edges."""
    return "".join(word[:1].upper() + word[1:] for word in method.split("_"))


class ApiTimes:
    """One API on one edge. The edges add to the fields of phases directly."""

    __slots__ = (
        "api",
        "counts",
        "local_s",
        "poll_s",
        "queue_s",
        "send_s",
        "throttle_s",
        "wait_phase",
        "wait_s",
    )

    def __init__(self, api: str) -> None:
        self.api = api
        #: Requests per bucket of `SECONDS_BOUNDS`.
        self.counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self.wait_phase = _WAITS.get(api, "remote")
        self.queue_s = self.local_s = self.wait_s = self.poll_s = self.throttle_s = self.send_s = 0.0

    def answered_at_once(self, arrived: float, started: float, now: float) -> None:
        """The usual request, without a wait. Called for each, so it is as short as can be."""
        self.queue_s += started - arrived
        self.local_s += now - started
        self.counts[bisect_left(SECONDS_BOUNDS, now - arrived)] += 1

    def answered(self, queue_s: float, handled_s: float, wait_s: float = 0.0, poll_s: float = 0.0) -> None:
        """`handled_s` is from the start of the handler to the response, including the waits."""
        if self.wait_phase == "poll":
            wait_s, poll_s = 0.0, poll_s or wait_s
        self.queue_s += queue_s
        self.wait_s += wait_s
        self.poll_s += poll_s
        self.local_s += handled_s - wait_s - poll_s
        self.counts[bisect_left(SECONDS_BOUNDS, queue_s + handled_s - poll_s)] += 1

    @property
    def seconds(self) -> Histogram:
        """Latency: without the time that the client asked to wait, or has to wait for its quota."""
        made = Histogram()
        made.counts = self.counts
        made.total = self.queue_s + self.local_s + self.wait_s
        return made

    def phases(self) -> dict[str, float]:
        """Time by phase, for the phases that this API has."""
        return {
            "queue": self.queue_s,
            "local": self.local_s,
            self.wait_phase: self.poll_s if self.wait_phase == "poll" else self.wait_s,
            "throttle": self.throttle_s,
            "send": self.send_s,
        }


class ClientTraffic:
    """What one client id did on one edge."""

    __slots__ = ("bytes_in", "bytes_out", "connections", "requests")

    def __init__(self) -> None:
        self.connections = self.requests = self.bytes_in = self.bytes_out = 0

    def add(self, other: ClientTraffic) -> None:
        self.connections += other.connections
        self.requests += other.requests
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out


class RequestMetrics:
    """All APIs and clients of one edge."""

    def __init__(self, edge: str, clients_max: int = 100) -> None:
        self.edge = edge
        self.clients_max = clients_max
        self._apis: dict[str, ApiTimes] = {}
        self._errors: dict[tuple[str, str], int] = {}
        self._clients: dict[str, ClientTraffic] = {}
        self._other = ClientTraffic()

    def of(self, api: str) -> ApiTimes:
        api = api_name(api)
        times = self._apis.get(api)
        if times is None:
            times = self._apis[api] = ApiTimes(api)
        return times

    def failed(self, api: str, error: str) -> None:
        key = (api_name(api), error)
        if key not in self._errors and len(self._errors) >= _ERRORS_MAX:
            key = (key[0], OTHER)
        self._errors[key] = self._errors.get(key, 0) + 1

    def connected(self, client_id: str) -> ClientTraffic:
        """Where a new connection of this client counts, until `disconnected`."""
        traffic = self._traffic(client_id[:_CLIENT_ID_CHARS] or NONE)
        traffic.connections += 1
        return traffic

    def disconnected(self, traffic: ClientTraffic) -> None:
        traffic.connections -= 1

    def _traffic(self, client_id: str) -> ClientTraffic:
        found = self._clients.get(client_id)
        if found is None:
            if len(self._clients) >= self.clients_max and not self._evict():
                return self._other
            found = self._clients[client_id] = ClientTraffic()
        return found

    def _evict(self) -> bool:
        """Make room: the disconnected client with the least traffic goes to the others."""
        gone = [
            (each.bytes_in + each.bytes_out, id_)
            for id_, each in self._clients.items()
            if not each.connections
        ]
        if not gone:
            return False
        self._other.add(self._clients.pop(min(gone)[1]))
        return True

    # ------------------------------------------------------------------ a scrape

    def times(self) -> Iterable[ApiTimes]:
        return self._apis.values()

    def errors(self) -> Iterator[tuple[str, str, int]]:
        for (api, error), count in self._errors.items():
            yield api, error, count

    def clients(self) -> Iterator[tuple[str, ClientTraffic]]:
        yield from self._clients.items()
        yield OTHER, self._other


def families(edges: Iterable[RequestMetrics]) -> Iterator[Family]:
    edges = list(edges)
    times = [(edge.edge, each) for edge in edges for each in edge.times()]
    yield Family(
        "ottla_request_seconds", "histogram",
        "Time from a complete request to its response, by edge and API, without long polling and throttling.",
        chain.from_iterable(each.seconds.samples((("edge", edge), ("api", each.api))) for edge, each in times),
    )  # fmt: skip
    yield Family(
        "ottla_request_phase_seconds_total", "counter",
        "Time of requests by edge, API and phase: " + ", ".join(PHASES) + ".",
        (
            Sample("", (("edge", edge), ("api", each.api), ("phase", phase)), round(spent_s, 9))
            for edge, each in times
            for phase, spent_s in each.phases().items()
        ),
    )  # fmt: skip
    errors = [(edge.edge, *row) for edge in edges for row in edge.errors()]
    yield Family(
        "ottla_request_errors_total", "counter", "Errors returned, by edge and API; a request can return several.",
        (Sample("", (("edge", e), ("api", api), ("error", error)), n) for e, api, error, n in errors),
    )  # fmt: skip
    yield from _as_kafka(times, errors)
    yield from _of_clients(edges)


def _as_kafka(times: list[tuple[str, ApiTimes]], errors: list[tuple[str, str, str, int]]) -> Iterator[Family]:
    """Under the names of Kafka's own metrics, as Strimzi's dashboards know them, with an edge in addition."""
    yield Family(
        "kafka_network_requestmetrics_requests_total", "counter", "Requests by API.",
        [Sample("", (("request", each.api), ("edge", edge)), sum(each.counts)) for edge, each in times],
    )  # fmt: skip
    yield Family(
        "kafka_network_requestmetrics_errors_total", "counter", "Errors returned, by API.",
        (Sample("", (("request", api), ("edge", edge), ("error", error)), n) for edge, api, error, n in errors),
    )  # fmt: skip


def _of_clients(edges: list[RequestMetrics]) -> Iterator[Family]:
    rows = [
        ((("edge", edge.edge), ("client_id", name)), each) for edge in edges for name, each in edge.clients()
    ]
    for name, kind, doc, attribute in (
        (
            "ottla_client_connections",
            "gauge",
            "Open connections of a client id; streams on gRPC.",
            "connections",
        ),
        ("ottla_client_requests_total", "counter", "Requests of a client id.", "requests"),
        ("ottla_client_received_bytes_total", "counter", "Bytes of requests of a client id.", "bytes_in"),
        ("ottla_client_sent_bytes_total", "counter", "Bytes of responses to a client id.", "bytes_out"),
    ):
        yield Family(name, kind, doc, [Sample("", labels, getattr(each, attribute)) for labels, each in rows])
