"""How large etcd's database is, and how often it was written: asked from etcd itself. [A]"""

from __future__ import annotations

from typing import NamedTuple

import grpc
from aetcd import rpc
from aetcd.rpc.rpc_pb2_grpc import KVStub, MaintenanceStub

_TIMEOUT_S = 10.0


class EtcdFigures(NamedTuple):
    #: The file, with the history that is kept.
    size_mb: float
    #: What of it is in use.
    used_mb: float
    #: Transactions and other entries of its log so far.
    entries: int
    keys: int


def etcd_figures(endpoint: str) -> EtcdFigures:
    with grpc.insecure_channel(endpoint) as channel:
        status = MaintenanceStub(channel).Status(rpc.StatusRequest(), timeout=_TIMEOUT_S)
        whole = rpc.RangeRequest(key=b"\0", range_end=b"\0", count_only=True)
        count = KVStub(channel).Range(whole, timeout=_TIMEOUT_S).count
    used = getattr(status, "dbSizeInUse", 0) or status.dbSize
    return EtcdFigures(status.dbSize / 1e6, used / 1e6, status.raftIndex, count)
