"""Why brokers do not serve some of Kafka's APIs: a sentence for each of them, for docs/reference/protocol.md."""

from __future__ import annotations

_KRAFT = (
    "between Kafka's brokers and controllers (KRaft); metadata is in etcd, and the controller is a broker"
)
_SHARE = "share groups (KIP-932) are not supported; `kafka-share-groups` and `KafkaShareConsumer` say so"
_SHARE_STATE = "between the coordinators of share groups, which are not supported"
_STREAMS = "groups that the broker assigns for Kafka Streams (KIP-1071); Streams works with its default, `group.protocol=classic`"
_TOKENS = "delegation tokens; log in with SCRAM, PLAIN or a certificate"
_TELEMETRY = "clients push their metrics only to brokers that advertise it; scrape the clients instead"

REASONS: dict[int, str] = {
    **dict.fromkeys((38, 39, 40, 41), _TOKENS),
    **dict.fromkeys((52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 80, 81, 82), _KRAFT),
    57: "feature levels cannot be changed: they are those of the brokers' version, as ApiVersions shows them",
    **dict.fromkeys((71, 72), _TELEMETRY),
    **dict.fromkeys((76, 77, 78, 79, 90, 91, 92), _SHARE),
    **dict.fromkeys((83, 84, 85, 86, 87), _SHARE_STATE),
    **dict.fromkeys((88, 89), _STREAMS),
}
