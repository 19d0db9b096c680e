"""The transaction of one transactional id, as its last record says. [P]

Producer epochs end at 32,766: at that epoch the next one needs a new producer id (`EPOCH_MAX` itself is left for a
coordinator that fences the producer of an open transaction, or ends its last transaction).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ottla_broker.requests import ProducerIdentity
from ottla_core.ids import TopicPartition

EPOCH_MAX = 32_767
NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
#: The timeout of a prepared transaction, as KIP-939 records it; a broker setting bounds it instead.
TWO_PHASE_TIMEOUT_MS = 2_147_483_647
#: The client bumps its epoch with each transaction (KIP-890).
TRANSACTIONS_V2 = 2


class State(IntEnum):
    """Kafka's numbers; they are in the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's name, which its tools show and filter by."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_PREPARED = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


@dataclass(frozen=True, slots=True)
class Transaction:
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    #: Where the transaction has written; also the partitions of `__consumer_offsets` with its offsets.
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int = NO_TIME
    #: The producer id before the last change of it, and the one that replaces it when the transaction is complete.
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def next_producer(self) -> ProducerIdentity:
        """What the producer is to continue with."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.producer

    @property
    def is_ongoing(self) -> bool:
        return self.state is State.ONGOING

    @property
    def is_two_phase(self) -> bool:
        """The current transaction, or the last one, was prepared by its producer: any process may end it by name."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    @property
    def is_prepared(self) -> bool:
        """Decided; markers are being written."""
        return self.state in _PREPARED

    @property
    def is_idle(self) -> bool:
        """Neither open, nor waiting for markers."""
        return not self.is_ongoing and not self.is_prepared

    @property
    def is_exhausted(self) -> bool:
        """True if the next epoch needs a new producer id."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def commits(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    @property
    def completed_state(self) -> State:
        return _PREPARED[self.state]
