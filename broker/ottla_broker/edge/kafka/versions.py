"""Which Kafka APIs this edge serves, in which versions: the only source for ApiVersions and for dispatch. [P]

To serve another API: add its row here, its rights in `edge/needs.py` and its file `handlers/k<key>_<name>.py`; tests
compare them with each other and with the schemas.
"""

from __future__ import annotations

from typing import NamedTuple


class Api(NamedTuple):
    key: int
    #: Kafka's name in snake case: names the handler file and the schema.
    name: str
    #: What is really served.
    low: int
    high: int
    #: From this version on, requests and responses carry tagged fields and compact lengths.
    flexible_from: int
    #: What ApiVersions says instead of `low`, where clients draw wrong conclusions from the truth.
    advertised_low: int | None = None


_APIS = (
    # librdkafka takes "Produce from 3" for "this broker cannot compress" and silently stops compressing, so
    # the old versions are advertised, and refused when used: no client has sent them since 2017.
    Api(0, "produce", 3, 13, flexible_from=9, advertised_low=0),
    Api(1, "fetch", 4, 18, flexible_from=12),
    Api(2, "list_offsets", 1, 11, flexible_from=6),
    Api(3, "metadata", 0, 13, flexible_from=9),
    Api(8, "offset_commit", 2, 10, flexible_from=8),
    Api(9, "offset_fetch", 1, 10, flexible_from=6),
    Api(10, "find_coordinator", 0, 6, flexible_from=3),
    Api(11, "join_group", 0, 9, flexible_from=6),
    Api(12, "heartbeat", 0, 4, flexible_from=4),
    Api(13, "leave_group", 0, 5, flexible_from=4),
    Api(14, "sync_group", 0, 5, flexible_from=4),
    Api(15, "describe_groups", 0, 6, flexible_from=5),
    Api(16, "list_groups", 0, 5, flexible_from=3),
    # Version 0 sends the messages of the login without headers; clients take it for the first of both, so it is
    # advertised, and refused when used.
    Api(17, "sasl_handshake", 1, 1, flexible_from=2, advertised_low=0),
    Api(18, "api_versions", 0, 4, flexible_from=3),
    Api(19, "create_topics", 2, 7, flexible_from=5),
    Api(20, "delete_topics", 1, 6, flexible_from=4),
    Api(21, "delete_records", 0, 2, flexible_from=2),
    Api(22, "init_producer_id", 0, 6, flexible_from=2),
    Api(23, "offset_for_leader_epoch", 2, 4, flexible_from=4),
    Api(24, "add_partitions_to_txn", 0, 5, flexible_from=3),
    Api(25, "add_offsets_to_txn", 0, 4, flexible_from=3),
    Api(26, "end_txn", 0, 5, flexible_from=3),
    Api(27, "write_txn_markers", 1, 2, flexible_from=1),
    Api(28, "txn_offset_commit", 0, 5, flexible_from=3),
    Api(29, "describe_acls", 1, 3, flexible_from=2),
    Api(30, "create_acls", 1, 3, flexible_from=2),
    Api(31, "delete_acls", 1, 3, flexible_from=2),
    Api(32, "describe_configs", 1, 4, flexible_from=4),
    Api(33, "alter_configs", 0, 2, flexible_from=2),
    Api(34, "alter_replica_log_dirs", 1, 2, flexible_from=2),
    Api(35, "describe_log_dirs", 1, 5, flexible_from=2),
    Api(36, "sasl_authenticate", 0, 2, flexible_from=2),
    Api(37, "create_partitions", 0, 3, flexible_from=2),
    Api(42, "delete_groups", 0, 2, flexible_from=2),
    Api(43, "elect_leaders", 0, 2, flexible_from=2),
    Api(44, "incremental_alter_configs", 0, 1, flexible_from=1),
    Api(45, "alter_partition_reassignments", 0, 1, flexible_from=0),
    Api(46, "list_partition_reassignments", 0, 0, flexible_from=0),
    # Never flexible: its one version came before, and has stayed the only one.
    Api(47, "offset_delete", 0, 0, flexible_from=1),
    Api(50, "describe_user_scram_credentials", 0, 0, flexible_from=0),
    Api(51, "alter_user_scram_credentials", 0, 0, flexible_from=0),
    Api(48, "describe_client_quotas", 0, 1, flexible_from=1),
    Api(49, "alter_client_quotas", 0, 1, flexible_from=1),
    Api(55, "describe_quorum", 0, 2, flexible_from=0),
    Api(60, "describe_cluster", 0, 2, flexible_from=0),
    Api(61, "describe_producers", 0, 0, flexible_from=0),
    Api(64, "unregister_broker", 0, 0, flexible_from=0),
    Api(65, "describe_transactions", 0, 0, flexible_from=0),
    Api(66, "list_transactions", 0, 2, flexible_from=0),
    Api(68, "consumer_group_heartbeat", 0, 1, flexible_from=0),
    Api(69, "consumer_group_describe", 0, 1, flexible_from=0),
    Api(74, "list_config_resources", 0, 1, flexible_from=0),
    Api(75, "describe_topic_partitions", 0, 0, flexible_from=0),
)

APIS: dict[int, Api] = {api.key: api for api in _APIS}

API_VERSIONS_KEY = 18
#: FindCoordinator, JoinGroup, Heartbeat, LeaveGroup, SyncGroup, SaslHandshake, ApiVersions, SaslAuthenticate,
#: ConsumerGroupHeartbeat: small requests that keep groups and connections alive. They and their answers are served
#: before bulk work.
URGENT = frozenset((10, 11, 12, 13, 14, 17, API_VERSIONS_KEY, 36, 68))
