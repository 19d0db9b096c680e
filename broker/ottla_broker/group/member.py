"""One member of a group as the coordinator knows it. [P]"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ottla_broker.coordination.shard import Ticket
from ottla_broker.group.member_memory import MEMBER_BYTES, protocol_bytes
from ottla_broker.group.messages import Protocol
from ottla_broker.group.records import MemberValue


@dataclass(slots=True)
class Member:
    id: str
    #: Set: a static member (KIP-345), which keeps its assignment over a restart.
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    #: Supported protocols, preferred first.
    protocols: tuple[Protocol, ...]
    #: Of the current generation; empty while there is none.
    assignment: bytes = b""
    #: Its unanswered JoinGroup: it has joined the rebalance.
    joining: Ticket | None = None
    #: Its unanswered SyncGroup: it waits for the leader's assignment.
    syncing: Ticket | None = None
    #: Has not been in a generation yet.
    is_new: bool = False
    #: Known from a record, which holds only the protocol in use; it names the others when it joins again.
    is_recalled: bool = False

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about."""
        texts = len(self.id) + len(self.client_id) + len(self.client_host) + len(self.instance_id or "")
        return MEMBER_BYTES + texts + len(self.assignment) + protocol_bytes(self.protocols)

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")

    def vote(self, candidates: Container[str]) -> str:
        """This member's preferred protocol of the candidates; it supports at least one, or it would not be in the
        group."""
        return next(p.name for p in self.protocols if p.name in candidates)

    def to_value(self, protocol: str | None, assignment: bytes) -> MemberValue:
        return MemberValue(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata_for(protocol),
            assignment,
        )

    @classmethod
    def of_value(cls, value: MemberValue, protocol: str | None) -> Member:
        """A member as a record has it: of its protocols only the one in use is known."""
        return cls(
            id=value.member_id,
            instance_id=value.instance_id,
            client_id=value.client_id,
            client_host=value.client_host,
            session_timeout_ms=value.session_timeout_ms,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            protocols=(Protocol(protocol or "", value.subscription),),
            assignment=value.assignment,
            is_recalled=True,
        )
