"""Kafka's settings that the format ottla accepts without effect, accepts with one value, or refuses with a reason. [P]

`options` consults it for every option without a field of its own. Sentences complete "The option NAME ...".
"""

from __future__ import annotations

#: Accepted, because the query means the same without them.
_NO_EFFECT = frozenset(
    [
        "kafka.client.id",
        # gRPC has connections and buffers of its own, and the client refreshes its metadata when a leader moves.
        "kafka.client.dns.lookup",
        "kafka.connections.max.idle.ms",
        "kafka.metadata.max.age.ms",
        "kafka.receive.buffer.bytes",
        "kafka.reconnect.backoff.max.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.retry.backoff.max.ms",
        "kafka.retry.backoff.ms",
        "kafka.send.buffer.bytes",
        "kafka.socket.connection.setup.timeout.max.ms",
        "kafka.socket.connection.setup.timeout.ms",
        # Spark and the brokers have metrics; the client in a task has none.
        "kafka.enable.metrics.push",
        "kafka.metrics.num.samples",
        "kafka.metrics.recording.level",
        "kafka.metrics.sample.window.ms",
    ]
)
READ_WITHOUT_EFFECT = _NO_EFFECT | frozenset(
    [
        "fetchOffset.numRetries",  # the client retries until its time-out
        "fetchOffset.retryIntervalMs",
        # A query joins no consumer group.
        "groupIdPrefix",
        "kafka.group.instance.id",
        "kafka.group.protocol",
        "kafka.heartbeat.interval.ms",
        "kafka.max.poll.interval.ms",
        "kafka.partition.assignment.strategy",
        "kafka.session.timeout.ms",
        # What a task reads is in the log already, so no fetch waits.
        "kafka.fetch.max.wait.ms",
        "kafka.fetch.min.bytes",
        "kafka.max.poll.records",  # a task turns whole fetches into columns
    ]
)
WRITE_WITHOUT_EFFECT = (
    _NO_EFFECT
    | frozenset(
        [
            "kafka.linger.ms",  # a task encodes megabytes at a time, and does not wait for more
            "kafka.partitioner.adaptive.partitioning.enable",  # rows without a key fill one partition after the other
            "kafka.partitioner.availability.timeout.ms",
            "kafka.retries",  # retried until kafka.delivery.timeout.ms
        ]
    )
)

#: Accepted with this value only.
_ONE_VALUE = {
    "kafka.allow.auto.create.topics": ("false", "a query creates no topics"),
    "kafka.check.crcs": ("true", "the CRC of every batch is checked"),
    "kafka.exclude.internal.topics": ("true", "patterns name no internal topics; name them with subscribe"),
    "kafka.partitioner.ignore.keys": ("false", "fill the column partition instead"),
    "kafka.ssl.endpoint.identification.algorithm": ("https", "the name in a broker's certificate is checked"),
}
ONE_VALUE = frozenset(_ONE_VALUE)

_NO_JAAS = (
    "is refused: set kafka.sasl.mechanism with kafka.sasl.username and kafka.sasl.password, or with "
    "kafka.sasl.oauthbearer.token.*."
)
_NO_KEYSTORES = (
    "is refused: set kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location to PEM "
    "files."
)
_BYTES_ONLY = "is refused as in Spark's connector: keys and values are binary; convert columns instead."
_JAVA = "names Java classes, which the format ottla does not run."
_REFUSED = {
    "kafka.auto.offset.reset": "is refused as in Spark's connector: set startingOffsets.",
    "kafka.auto.commit.interval.ms": "is refused: offsets are kept in the checkpoint.",
    "kafka.default.api.timeout.ms": "is refused: set kafka.request.timeout.ms, and fetchTimeoutMs for a task.",
    "kafka.enable.auto.commit": "is refused as in Spark's connector: offsets are kept in the checkpoint.",
    "kafka.group.remote.assignor": "is refused: a query joins no consumer group; Spark divides the partitions.",
    "kafka.interceptor.classes": _JAVA,
    "kafka.metric.reporters": _JAVA,
    "kafka.security.providers": _JAVA,
    "kafka.partitioner.class": "names a Java class; fill the column partition instead.",
    "kafka.key.deserializer": _BYTES_ONLY,
    "kafka.value.deserializer": _BYTES_ONLY,
    "kafka.key.serializer": _BYTES_ONLY,
    "kafka.value.serializer": _BYTES_ONLY,
    "kafka.transactional.id": "is refused: each task has a transaction of its own; see deliveryGuarantee.",
}
_REFUSED_PREFIXES = {
    "kafka.compression.": "is refused: set compression; its level is fixed.",
    "kafka.sasl.": _NO_JAAS,
    "kafka.ssl.": _NO_KEYSTORES,
}
_BY_LOWER = {name.lower(): reason for name, reason in _REFUSED.items()}


def why_refused(name: str) -> str | None:
    """The reason why a setting of Kafka is refused; None if there is no such setting. In any case."""
    name = name.lower()
    if name in _BY_LOWER:
        return _BY_LOWER[name]
    for prefix, reason in _REFUSED_PREFIXES.items():
        if name.startswith(prefix):
            return reason
    return None


def wrong_value(name: str, value: str) -> str | None:
    """Why this value of a setting is refused."""
    only = _ONE_VALUE.get(name.lower())
    if only is None or value.strip().lower() == only[0]:
        return None
    return f"takes {only[0]}: {only[1]}."
