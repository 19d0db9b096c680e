"""Options of Spark's Kafka connector that the format ottla accepts without effect, or refuses with a reason. [P]

`options` consults it for every option without a field of its own. Each sentence completes "The option NAME ...".
"""

from __future__ import annotations

#: Accepted, because the query means the same without them.
READ_WITHOUT_EFFECT = frozenset(
    [
        "groupIdPrefix",  # a query joins no consumer group
        "kafka.group.id",
        "kafka.client.id",
        "fetchOffset.numRetries",  # the client retries until its time-out
        "fetchOffset.retryIntervalMs",
    ]
)
WRITE_WITHOUT_EFFECT = frozenset(
    [
        "kafka.client.id",
        "kafka.linger.ms",  # a task encodes megabytes at a time, and does not wait for more
        "kafka.retries",  # retried until kafka.delivery.timeout.ms
    ]
)

_NO_JAAS = (
    "is refused: set kafka.sasl.mechanism with kafka.sasl.username and kafka.sasl.password, or with "
    "kafka.sasl.oauthbearer.token.*."
)
_NO_KEYSTORES = (
    "is refused: set kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location to PEM "
    "files."
)
_BYTES_ONLY = "is refused as in Spark's connector: keys and values are binary; convert columns instead."
_REFUSED = {
    "kafka.auto.offset.reset": "is refused as in Spark's connector: set startingOffsets.",
    "kafka.enable.auto.commit": "is refused as in Spark's connector: offsets are kept in the checkpoint.",
    "kafka.interceptor.classes": "names Java classes, which the format ottla does not run.",
    "kafka.partitioner.class": "names a Java class; fill the column partition instead.",
    "kafka.key.deserializer": _BYTES_ONLY,
    "kafka.value.deserializer": _BYTES_ONLY,
    "kafka.key.serializer": _BYTES_ONLY,
    "kafka.value.serializer": _BYTES_ONLY,
    "kafka.transactional.id": "is refused: each task has a transaction of its own; see deliveryGuarantee.",
}
_REFUSED_PREFIXES = {"kafka.sasl.": _NO_JAAS, "kafka.ssl.": _NO_KEYSTORES}
_BY_LOWER = {name.lower(): reason for name, reason in _REFUSED.items()}


def why_refused(name: str) -> str | None:
    """The reason why an option of the connector is refused; None if there is no such option. In any case."""
    name = name.lower()
    for prefix, reason in _REFUSED_PREFIXES.items():
        if name.startswith(prefix):
            return reason
    return _BY_LOWER.get(name)
