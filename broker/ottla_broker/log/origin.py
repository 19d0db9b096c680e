"""Origin of a leader's append (client or coordinator): decides which checks a batch has to pass. [P]

Followers do not use it: `Log.append_as_follower` accepts what a leader has checked and assigned offsets to.
"""

from __future__ import annotations

from enum import Enum


class AppendOrigin(Enum):
    #: A produce request. Nothing in it is trusted: every record is checked, and transactional batches are refused.
    CLIENT = "client"
    #: A produce request whose transaction its coordinator has confirmed: the same checks, but it may be transactional.
    TRANSACTION = "transaction"
    #: This broker: a coordinator's records, transactional offset commits, transaction markers. No client limits.
    COORDINATOR = "coordinator"
