"""Rights that each API of both protocols needs, as Kafka documents them: the table that authorisation goes by. [P]

An API without a row is not served (`registry.entry`, `GrpcEdge`), so that a new one cannot forget its row; a test
names it. Rights of one row are needed together, unless the comment says otherwise. `service/guarded` and the handlers
that answer from the image check them; a test calls every API without them.
"""

from __future__ import annotations

from typing import NamedTuple


class Need(NamedTuple):
    #: Kafka's AclOperation.
    operation: str
    #: Kafka's ResourceType: Topic, Group, Cluster, TransactionalId.
    resource: str


_READ_TOPIC = Need("Read", "Topic")
_WRITE_TOPIC = Need("Write", "Topic")
_DESCRIBE_TOPIC = Need("Describe", "Topic")
_READ_GROUP = Need("Read", "Group")
_DESCRIBE_GROUP = Need("Describe", "Group")
_DELETE_GROUP = Need("Delete", "Group")
_WRITE_ID = Need("Write", "TransactionalId")
_DESCRIBE_ID = Need("Describe", "TransactionalId")
_DESCRIBE_CLUSTER = Need("Describe", "Cluster")
_ALTER_CLUSTER = Need("Alter", "Cluster")
#: On the resource that a request names: a topic, a group, or the cluster for brokers.
_DESCRIBE_CONFIGS = (
    Need("DescribeConfigs", "Topic"),
    Need("DescribeConfigs", "Group"),
    Need("DescribeConfigs", "Cluster"),
)
_ALTER_CONFIGS = (
    Need("AlterConfigs", "Topic"),
    Need("AlterConfigs", "Group"),
    Need("AlterConfigs", "Cluster"),
)

#: By the name of the API in `edge.kafka.versions`.
KAFKA: dict[str, tuple[Need, ...]] = {
    # The second one for a request with a transactional id.
    "produce": (_WRITE_TOPIC, _WRITE_ID),
    "fetch": (_READ_TOPIC,),
    "list_offsets": (_DESCRIBE_TOPIC,),
    "metadata": (_DESCRIBE_TOPIC,),
    "offset_commit": (_READ_GROUP, _READ_TOPIC),
    "offset_fetch": (_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    # By the type of the key.
    "find_coordinator": (_DESCRIBE_GROUP, _DESCRIBE_ID),
    "join_group": (_READ_GROUP,),
    "heartbeat": (_READ_GROUP,),
    "leave_group": (_READ_GROUP,),
    "sync_group": (_READ_GROUP,),
    "describe_groups": (_DESCRIBE_GROUP,),
    # The second one lists the group, the first one all groups.
    "list_groups": (_DESCRIBE_CLUSTER, _DESCRIBE_GROUP),
    "api_versions": (),
    # A login says who the caller is.
    "sasl_handshake": (),
    "sasl_authenticate": (),
    # Either of them.
    "create_topics": (Need("Create", "Cluster"), Need("Create", "Topic")),
    "delete_topics": (Need("Delete", "Topic"),),
    "delete_records": (Need("Delete", "Topic"),),
    # A transactional id needs the right on it; without one, either of the others.
    "init_producer_id": (_WRITE_ID, Need("IdempotentWrite", "Cluster"), _WRITE_TOPIC),
    "offset_for_leader_epoch": (_DESCRIBE_TOPIC,),
    # From version 4 on, which is for brokers, also ClusterAction on the cluster.
    "add_partitions_to_txn": (_WRITE_ID, _WRITE_TOPIC),
    "add_offsets_to_txn": (_WRITE_ID, _READ_GROUP),
    "end_txn": (_WRITE_ID,),
    # Either of them.
    "write_txn_markers": (Need("ClusterAction", "Cluster"), Need("Alter", "Cluster")),
    "txn_offset_commit": (_WRITE_ID, _READ_GROUP, _READ_TOPIC),
    "describe_client_quotas": (Need("DescribeConfigs", "Cluster"),),
    "alter_client_quotas": (Need("AlterConfigs", "Cluster"),),
    "describe_acls": (_DESCRIBE_CLUSTER,),
    "create_acls": (_ALTER_CLUSTER,),
    "delete_acls": (_ALTER_CLUSTER,),
    "describe_configs": _DESCRIBE_CONFIGS,
    "alter_configs": _ALTER_CONFIGS,
    "alter_replica_log_dirs": (_ALTER_CLUSTER,),
    "describe_log_dirs": (_DESCRIBE_CLUSTER,),
    "create_partitions": (Need("Alter", "Topic"),),
    "delete_groups": (_DELETE_GROUP,),
    "incremental_alter_configs": _ALTER_CONFIGS,
    "list_partition_reassignments": (_DESCRIBE_CLUSTER,),
    "alter_partition_reassignments": (_ALTER_CLUSTER,),
    "elect_leaders": (_ALTER_CLUSTER,),
    "unregister_broker": (_ALTER_CLUSTER,),
    "describe_user_scram_credentials": (_DESCRIBE_CLUSTER,),
    "alter_user_scram_credentials": (_ALTER_CLUSTER,),
    "describe_quorum": (_DESCRIBE_CLUSTER,),
    "offset_delete": (_DELETE_GROUP, _READ_TOPIC),
    "describe_cluster": (_DESCRIBE_CLUSTER,),
    "consumer_group_heartbeat": (_READ_GROUP, _DESCRIBE_TOPIC),
    "consumer_group_describe": (_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    "describe_producers": (_READ_TOPIC,),
    "describe_transactions": (_DESCRIBE_ID, _DESCRIBE_TOPIC),
    "list_transactions": (_DESCRIBE_ID,),
    "list_config_resources": (Need("DescribeConfigs", "Cluster"),),
    "describe_topic_partitions": (_DESCRIBE_TOPIC,),
}

#: By the full name of the method: the same rights as the Kafka API that does the same.
GRPC: dict[str, tuple[Need, ...]] = {
    "ottla.v1.Log/Produce": KAFKA["produce"],
    "ottla.v1.Log/Fetch": KAFKA["fetch"],
    "ottla.v1.Log/ListOffsets": KAFKA["list_offsets"],
    "ottla.v1.Log/OffsetsForLeaderEpoch": KAFKA["offset_for_leader_epoch"],
    "ottla.v1.Log/DeleteRecords": KAFKA["delete_records"],
    "ottla.v1.Log/InitProducerId": KAFKA["init_producer_id"],
    "ottla.v1.Admin/Metadata": KAFKA["metadata"],
    "ottla.v1.Admin/CreateTopics": KAFKA["create_topics"],
    "ottla.v1.Admin/DeleteTopics": KAFKA["delete_topics"],
    "ottla.v1.Admin/CreatePartitions": KAFKA["create_partitions"],
    "ottla.v1.Admin/DescribeConfigs": KAFKA["describe_configs"],
    "ottla.v1.Admin/AlterConfigs": KAFKA["incremental_alter_configs"],
    "ottla.v1.Admin/DescribeCluster": KAFKA["describe_cluster"],
    "ottla.v1.Admin/DescribeReplicas": KAFKA["describe_log_dirs"],
    "ottla.v1.Admin/DescribeLogDirs": KAFKA["describe_log_dirs"],
    "ottla.v1.Admin/AlterReplicaLogDirs": KAFKA["alter_replica_log_dirs"],
    "ottla.v1.Admin/AlterPartitionReassignments": KAFKA["alter_partition_reassignments"],
    "ottla.v1.Admin/ListPartitionReassignments": KAFKA["list_partition_reassignments"],
    "ottla.v1.Admin/ElectLeaders": KAFKA["elect_leaders"],
    # Cordons exist only in the native protocol.
    "ottla.v1.Admin/CordonBroker": (_ALTER_CLUSTER,),
    "ottla.v1.Admin/UncordonBroker": (_ALTER_CLUSTER,),
    "ottla.v1.Admin/UnregisterBroker": KAFKA["unregister_broker"],
    "ottla.v1.Admin/DescribeMetrics": (_DESCRIBE_CLUSTER,),
    "ottla.v1.Acls/CreateAcls": KAFKA["create_acls"],
    "ottla.v1.Acls/DescribeAcls": KAFKA["describe_acls"],
    "ottla.v1.Acls/DeleteAcls": KAFKA["delete_acls"],
    "ottla.v1.Quotas/DescribeQuotas": KAFKA["describe_client_quotas"],
    "ottla.v1.Quotas/AlterQuotas": KAFKA["alter_client_quotas"],
    "ottla.v1.Admin/DescribeUserScramCredentials": KAFKA["describe_user_scram_credentials"],
    "ottla.v1.Admin/AlterUserScramCredentials": KAFKA["alter_user_scram_credentials"],
    "ottla.v1.Groups/FindCoordinator": KAFKA["find_coordinator"],
    "ottla.v1.Groups/Join": KAFKA["join_group"],
    "ottla.v1.Groups/Sync": KAFKA["sync_group"],
    "ottla.v1.Groups/Heartbeat": KAFKA["heartbeat"],
    "ottla.v1.Groups/Leave": KAFKA["leave_group"],
    "ottla.v1.Groups/ConsumerHeartbeat": KAFKA["consumer_group_heartbeat"],
    "ottla.v1.Groups/CommitOffsets": KAFKA["offset_commit"],
    "ottla.v1.Groups/FetchOffsets": KAFKA["offset_fetch"],
    "ottla.v1.Groups/ListGroups": KAFKA["list_groups"],
    "ottla.v1.Groups/DescribeGroups": KAFKA["describe_groups"],
    "ottla.v1.Groups/DescribeLag": KAFKA["offset_fetch"],
    "ottla.v1.Groups/DeleteGroups": KAFKA["delete_groups"],
    "ottla.v1.Groups/DeleteOffsets": KAFKA["offset_delete"],
    "ottla.v1.Transactions/InitProducer": (_WRITE_ID,),
    "ottla.v1.Transactions/PrepareTransaction": KAFKA["end_txn"],
    "ottla.v1.Transactions/EndTransaction": KAFKA["end_txn"],
    "ottla.v1.Transactions/ForgetTransactionalIds": KAFKA["end_txn"],
    "ottla.v1.Transactions/TxnOffsetCommit": KAFKA["txn_offset_commit"],
    "ottla.v1.Transactions/ListTransactions": KAFKA["list_transactions"],
    "ottla.v1.Transactions/DescribeTransactions": KAFKA["describe_transactions"],
    "ottla.v1.Transactions/DescribeProducers": KAFKA["describe_producers"],
    "ottla.v1.Transactions/AbortTransaction": KAFKA["write_txn_markers"],
}
