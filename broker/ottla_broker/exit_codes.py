"""How a broker process ends, for scripts and for `ottla up`. [P]"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    #: Stopped as asked: SIGTERM, SIGINT, or the end of standard input with --exit-with-parent.
    OK = 0
    #: A bug or an unforeseen failure; the log has the traceback.
    FAILED = 1
    #: A setting or an argument cannot be used.
    BAD_CONFIG = 2
    PORT_TAKEN = 3
    #: etcd cannot be reached.
    NO_ETCD = 4
    #: A log folder cannot be used: of another broker or cluster, in use, or not writable; or all of them have failed.
    BAD_LOG_DIR = 5
    #: The graceful stop did not finish within its deadline; the next start recovers.
    STOP_CUT_OFF = 6
    #: etcd holds less than this broker has seen (another cluster, or restored from an old backup).
    LOST_HISTORY = 7
    #: Another broker with this broker.id is alive.
    BROKER_ID_TAKEN = 8
