"""Settings of transactions; a part of `BrokerConfig` (`config.py`, which has the rules for such parts). [P]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.setting import LONG_MAX, setting, whole

MIB = 1024 * 1024


@dataclass(frozen=True)
class TransactionsConfig:
    """Transactions that this broker coordinates. `transaction.max.timeout.ms` is with the logs."""

    partitions: int = setting(
        "transaction.state.log.num.partitions",
        "50",
        whole(1, 100_000),
        "Partitions of __transaction_state; fixed once it exists.",
    )
    # As for __consumer_offsets: Kafka's default of 3 leaves a single broker without transactions.
    replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        "-1",
        whole(-1, 32_767),
        "Replicas of __transaction_state when it is created; -1: three, or as many as there are brokers.",
    )
    segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        str(100 * MIB),
        whole(MIB),
        "Segment size of __transaction_state; small segments load faster.",
    )
    id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        "604800000",
        whole(1, LONG_MAX),
        "How long a transactional id without transactions is remembered.",
    )
    ids_check_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "3600000",
        whole(1, LONG_MAX),
        "How often the broker checks for expired transactional ids.",
    )
    # Kafka has no limit. Fifty thousand ids, or one with half a million partitions.
    state_max_bytes: int = setting(
        "transaction.state.max.bytes",
        str(64 * MIB),
        whole(MIB),
        "Memory for the transactional ids, and the partitions of their open transactions, that this broker "
        "coordinates; beyond it, new ids and partitions are refused.",
    )
    # Readers with read_committed wait behind a prepared transaction, so it has a bound; but its coordinator, a Spark
    # driver for instance, may be down over a long weekend, and rows whose commit it has recorded are lost with it.
    two_phase_max_timeout_ms: int = setting(
        "transaction.two.phase.commit.max.timeout.ms",
        "604800000",
        whole(1, LONG_MAX),
        "How long a transaction may stay prepared before the broker aborts it.",
    )
