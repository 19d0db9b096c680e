"""Divides the process's file descriptors among log files, connections and everything else. [P]

A broker without descriptors cannot open its own files, and takes its disks for broken. So connections stay below what
is left for them, however many clients connect: a refused client costs less than a crashed broker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ottla_broker.config import BrokerConfig

#: Listeners, etcd, connections to other brokers, libraries, and files that are open for a moment only.
_OTHERS = 128
_FILES_MIN = 16
_CONNECTIONS_MIN = 16


class Shares(NamedTuple):
    #: Files of logs that are kept open.
    files: int
    kafka_connections: int
    grpc_connections: int
    #: From other brokers. Set aside before clients get theirs.
    internal_connections: int

    def are_short_for(self, config: BrokerConfig) -> bool:
        """Whether an edge has less than half of the connections that it was to have: worth a word."""
        kafka, grpc = config.kafka.connections_max, config.grpc.connections_max
        return self.kafka_connections < kafka / 2 or self.grpc_connections < grpc / 2


def share_out(config: BrokerConfig, limit: int) -> Shares:
    """As configured, within `limit` descriptors: up to half of them are for files, connections get the rest."""
    files = max(_FILES_MIN, min(config.log_dirs.open_files_max, limit // 2))
    internal = min(config.internal.connections_max, max(_CONNECTIONS_MIN, limit // 16))
    room = limit - files - config.http.connections_max - internal - _OTHERS
    kafka, grpc = config.kafka.connections_max, config.grpc.connections_max
    half = max(_CONNECTIONS_MIN, room // 2)
    # A user that needs less than half leaves the rest to the other.
    shares = min(kafka, max(half, room - grpc)), min(grpc, max(half, room - kafka))
    return Shares(files, *shares, internal)


def with_shares(config: BrokerConfig, shares: Shares) -> BrokerConfig:
    return replace(
        config,
        kafka=replace(config.kafka, connections_max=shares.kafka_connections),
        grpc=replace(config.grpc, connections_max=shares.grpc_connections),
        internal=replace(config.internal, connections_max=shares.internal_connections),
    )
