"""Every API of both protocols with no rights, with rights to read, to write, to administer, and as a super user.

Each is called for real. The tables name the resource on which the answer says that a right is missing; `-` is an answer
without such an error, whatever else it says of a request that makes little sense.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from uuid import UUID

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic

from authorization.guarded_broker import GuardedBroker
from authorization.requests import AUTHORIZATION, METHODS, TOPIC, KafkaClient, call
from ottla_broker.edge import needs
from ottla_broker.edge.kafka.versions import APIS

pytestmark = pytest.mark.integration

RIGHTS: dict[str, list[tuple[str, str, str]]] = {
    "none": [],
    "read": [
        ("READ", "TOPIC", "victim"),
        ("READ", "GROUP", "g"),
        ("DESCRIBE", "TRANSACTIONAL_ID", "x"),
        ("DESCRIBE", "CLUSTER", "kafka-cluster"),
        ("DESCRIBE_CONFIGS", "TOPIC", "victim"),
    ],
    "write": [("WRITE", "TOPIC", "victim"), ("WRITE", "TRANSACTIONAL_ID", "x")],
    "alter": [
        *((each, "TOPIC", "victim") for each in ("ALTER", "ALTER_CONFIGS", "DELETE", "CREATE")),
        ("DELETE", "GROUP", "g"),
        ("ALTER", "CLUSTER", "kafka-cluster"),
    ],
    "super": [],
}

#: none, read, write, alter, super.
KAFKA = {
    "produce": "topic topic - topic -",
    "fetch": "topic - topic topic -",
    "list_offsets": "topic - - - -",
    "metadata": "unknown - - - -",
    "offset_commit": "group - group group -",
    "offset_fetch": "group - group - -",
    "find_coordinator": "group - group - -",
    "join_group": "group - group group -",
    "heartbeat": "group - group group -",
    "leave_group": "group - group group -",
    "sync_group": "group - group group -",
    "describe_groups": "group - group - -",
    "list_groups": "- - - - -",
    "api_versions": "- - - - -",
    "create_topics": "topic topic topic - -",
    "delete_topics": "unknown topic topic - -",
    "delete_records": "topic topic topic - -",
    "init_producer_id": "id id - id -",
    "offset_for_leader_epoch": "topic - - - -",
    "add_partitions_to_txn": "cluster cluster cluster cluster -",
    "add_offsets_to_txn": "id id group id -",
    "end_txn": "id id - id -",
    "write_txn_markers": "cluster cluster cluster - -",
    "txn_offset_commit": "id id group id -",
    "describe_client_quotas": "cluster cluster cluster cluster -",
    "alter_client_quotas": "cluster cluster cluster cluster -",
    "describe_acls": "cluster - cluster - -",
    "create_acls": "cluster cluster cluster - -",
    "delete_acls": "cluster cluster cluster - -",
    "describe_configs": "topic - topic - -",
    "alter_configs": "topic topic topic - -",
    "alter_replica_log_dirs": "cluster cluster cluster - -",
    "describe_log_dirs": "cluster - cluster - -",
    "create_partitions": "topic topic topic - -",
    "delete_groups": "group group group - -",
    "elect_leaders": "cluster cluster cluster - -",
    "incremental_alter_configs": "topic topic topic - -",
    "alter_partition_reassignments": "cluster cluster cluster - -",
    "list_partition_reassignments": "cluster - cluster - -",
    "offset_delete": "group group group - -",
    "describe_user_scram_credentials": "cluster - cluster - -",
    "alter_user_scram_credentials": "cluster cluster cluster - -",
    "describe_quorum": "cluster - cluster - -",
    "describe_cluster": "- - - - -",
    "describe_producers": "topic - topic topic -",
    "unregister_broker": "cluster cluster cluster - -",
    "describe_transactions": "id - - id -",
    "list_transactions": "- - - - -",
    "consumer_group_heartbeat": "group - group group -",
    "consumer_group_describe": "group - group - -",
    "list_config_resources": "cluster cluster cluster cluster -",
    "describe_topic_partitions": "topic - - - -",
}

GRPC = {
    "ottla.v1.Log/Produce": "topic topic - topic -",
    "ottla.v1.Log/Fetch": "topic - topic topic -",
    "ottla.v1.Log/ListOffsets": "topic - - - -",
    "ottla.v1.Log/OffsetsForLeaderEpoch": "topic - - - -",
    "ottla.v1.Log/DeleteRecords": "topic topic topic - -",
    "ottla.v1.Log/InitProducerId": "cluster cluster - cluster -",
    "ottla.v1.Admin/Metadata": "topic - - - -",
    "ottla.v1.Admin/CreateTopics": "topic topic topic - -",
    "ottla.v1.Admin/DeleteTopics": "topic topic topic - -",
    "ottla.v1.Admin/CreatePartitions": "topic topic topic - -",
    "ottla.v1.Admin/DescribeConfigs": "topic - topic - -",
    "ottla.v1.Admin/AlterConfigs": "topic topic topic - -",
    "ottla.v1.Admin/DescribeCluster": "cluster - cluster - -",
    "ottla.v1.Admin/DescribeReplicas": "cluster - cluster - -",
    "ottla.v1.Admin/DescribeLogDirs": "cluster - cluster - -",
    "ottla.v1.Admin/AlterReplicaLogDirs": "cluster cluster cluster - -",
    "ottla.v1.Admin/AlterPartitionReassignments": "cluster cluster cluster - -",
    "ottla.v1.Admin/ListPartitionReassignments": "cluster - cluster - -",
    "ottla.v1.Admin/ElectLeaders": "cluster cluster cluster - -",
    "ottla.v1.Admin/CordonBroker": "cluster cluster cluster - -",
    "ottla.v1.Admin/UncordonBroker": "cluster cluster cluster - -",
    "ottla.v1.Admin/UnregisterBroker": "cluster cluster cluster - -",
    "ottla.v1.Admin/DescribeMetrics": "cluster - cluster - -",
    "ottla.v1.Admin/DescribeUserScramCredentials": "cluster - cluster - -",
    "ottla.v1.Admin/AlterUserScramCredentials": "cluster cluster cluster - -",
    "ottla.v1.Groups/FindCoordinator": "id id id id -",
    "ottla.v1.Groups/Join": "group - group group -",
    "ottla.v1.Groups/Sync": "group - group group -",
    "ottla.v1.Groups/Heartbeat": "group - group group -",
    "ottla.v1.Groups/Leave": "group - group group -",
    "ottla.v1.Groups/ConsumerHeartbeat": "group - group group -",
    "ottla.v1.Groups/CommitOffsets": "group - group group -",
    "ottla.v1.Groups/FetchOffsets": "group - group - -",
    "ottla.v1.Groups/ListGroups": "- - - - -",
    "ottla.v1.Groups/DescribeGroups": "group - group - -",
    "ottla.v1.Groups/DescribeLag": "group - group - -",
    "ottla.v1.Groups/DeleteGroups": "group group group - -",
    "ottla.v1.Groups/DeleteOffsets": "group group group topic -",
    "ottla.v1.Transactions/InitProducer": "id id - id -",
    "ottla.v1.Transactions/PrepareTransaction": "id id - id -",
    "ottla.v1.Transactions/ForgetTransactionalIds": "id id - id -",
    "ottla.v1.Transactions/EndTransaction": "id id - id -",
    "ottla.v1.Transactions/TxnOffsetCommit": "id id group id -",
    "ottla.v1.Transactions/ListTransactions": "- - - - -",
    "ottla.v1.Transactions/DescribeTransactions": "id - - id -",
    "ottla.v1.Transactions/DescribeProducers": "topic - topic topic -",
    "ottla.v1.Transactions/AbortTransaction": "cluster cluster cluster - -",
    "ottla.v1.Acls/CreateAcls": "cluster cluster cluster - -",
    "ottla.v1.Acls/DescribeAcls": "cluster - cluster - -",
    "ottla.v1.Acls/DeleteAcls": "cluster cluster cluster - -",
    "ottla.v1.Quotas/DescribeQuotas": "cluster cluster cluster cluster -",
    "ottla.v1.Quotas/AlterQuotas": "cluster cluster cluster cluster -",
}

#: They come before there is a principal.
LOGINS = {"sasl_handshake", "sasl_authenticate"}


def test_the_tables_name_every_api() -> None:
    assert set(KAFKA) | LOGINS == {api.name for api in APIS.values()}
    assert set(GRPC) == set(METHODS) == set(needs.GRPC)


@pytest.mark.parametrize("column", RIGHTS)
def test_every_api_checks_its_rights(guarded: GuardedBroker, column: str) -> None:
    topic_id = victim(guarded)
    user = "carol" if column == "super" else "alice"
    for operation, kind, name in RIGHTS[column]:
        guarded.allow(user, operation, kind, name)
    place = list(RIGHTS).index(column)
    client = KafkaClient(guarded, user)
    found = {api.name: missing(client.ask(api, topic_id)) for api in APIS.values() if api.name in KAFKA}
    client.close()
    assert found == {name: row.split()[place] for name, row in KAFKA.items()}
    with guarded.channel(user) as channel:
        called = {method: missing(call(channel, method)) for method in METHODS}
    assert called == {name: row.split()[place] for name, row in GRPC.items()}


def missing(errors: set[str]) -> str:
    return "+".join(sorted(AUTHORIZATION[each] for each in errors & AUTHORIZATION.keys())) or "-"


def victim(guarded: GuardedBroker) -> UUID:
    """The topic that is deleted on the way, created again if it is missing."""
    try:
        guarded.admin.create_topics([NewTopic(TOPIC, 1, 1)], operation_timeout=20)[TOPIC].result(30)
    except KafkaException as error:
        assert "TOPIC_ALREADY_EXISTS" in str(error)
    described = guarded.admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(10)
    return UUID(bytes=urlsafe_b64decode(str(described.topic_id) + "=="))
