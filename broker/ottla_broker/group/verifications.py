"""Offset commits of transactions that are being verified with their coordinator (rule 21). [P]

Time passes between the coordinator's answer and the commit. A marker of the producer that is decided meanwhile ends the
transaction: offsets behind it would begin one that nothing ends. The shard decides about markers and commits one at a
time, so it knows which came first, also before either is appended. A verification does not survive its shard: another
one cannot know what markers came in between.
"""

from __future__ import annotations


class Verification:
    """One commit, from before its coordinator is asked until it is decided."""

    __slots__ = ("home", "producer_id")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.home: Verifications | None = None

    def end(self) -> None:
        if self.home is not None:
            self.home.remove(self)


class Verifications:
    def __init__(self) -> None:
        self._of: dict[int, set[Verification]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def begin(self, verification: Verification) -> None:
        verification.home = self
        self._of.setdefault(verification.producer_id, set()).add(verification)

    def holds(self, verification: Verification) -> bool:
        """False if the transaction has ended since, or the verification began in another shard."""
        return verification in self._of.get(verification.producer_id, ())

    def ended(self, producer_id: int) -> None:
        """A marker of the producer was decided."""
        self._of.pop(producer_id, None)

    def remove(self, verification: Verification) -> None:
        left = self._of.get(verification.producer_id)
        if left is not None:
            left.discard(verification)
            if not left:
                del self._of[verification.producer_id]
