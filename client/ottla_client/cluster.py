"""The client's view of the cluster, and how it is refreshed. [S]

Owns the metadata cache (brokers, topics, leaders), its refresh with backoff, and unary calls to
any broker that answers. Producer, consumer and admin have one each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio

from ottla_client.background import Background
from ottla_client.connection import Broker, Connections, address_of, addresses_of, exception_of, translated
from ottla_client.errors import CannotConnect, ClientClosed, ClientError
from ottla_client.reachability import Reachability
from ottla_client.security import PLAINTEXT, Security
from ottla_client.wrong_port import explain
from ottla_core.errors import RequestError, RequestTimedOut
from ottla_core.ids import NO_BROKER, NO_EPOCH, TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock

#: One metadata attempt at one broker: a healthy broker answers in milliseconds, and another one may be healthy.
_ATTEMPT_TIMEOUT_S = 5.0
#: Timeout for asking a second broker, in case the first is stale.
_SECOND_OPINION_S = 1.0
#: Read-only methods, which may be sent twice; other methods might be executed twice.
_QUESTIONS = frozenset(["Metadata", "FindCoordinator"])


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The leaders of a topic's partitions at the time of the request."""

    name: str
    topic_id: str
    #: Broker id per partition; -1 for none.
    leaders: tuple[int, ...]
    epochs: tuple[int, ...]
    partitions: range
    #: Partitions with a leader.
    available: tuple[int, ...]


class Cluster:
    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        clock: Clock,
        chance: Chance,
        request_timeout_s: float,
        backoff_s: float = 0.1,
        backoff_max_s: float = 1.0,
        max_age_s: float = 300.0,
        security: Security = PLAINTEXT,
        client_id: str = "",
    ) -> None:
        self._bootstrap = addresses_of(bootstrap)
        self._clock = clock
        self._chance = chance
        self._request_timeout_s = request_timeout_s
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._max_age_s = max_age_s
        self._connections = Connections(security, client_id)
        self._addresses: dict[int, str] = {}
        #: The next call goes to this address first: it answered last.
        self._preferred = self._bootstrap[0]
        self._refreshing = asyncio.Lock()
        self._listeners: list[Callable[[TopicLayout], None]] = []
        self._open = False
        self.topics: dict[str, TopicLayout] = {}
        self.cluster_id = ""
        #: The largest Produce request that brokers accept; 0 if unknown.
        self.produce_bytes_max = 0
        self.background = Background()
        self._reachability = Reachability(clock, self.background)

    # ------------------------------------------------------------------ start and stop

    async def open(self) -> None:
        """Make sure that a broker answers; CannotConnect with a sentence about each address if none does."""
        self._open = True
        await self._connections.log_in()
        await self.refresh([], timeout_s=self._request_timeout_s, patient=False)
        self.background.spawn(self._keep_fresh(), "metadata refresh")

    async def close(self) -> None:
        self._open = False
        await self.background.close()
        await self._connections.close()

    async def _keep_fresh(self) -> None:
        """Refresh periodically: partitions are added and leaders move without any error that we would see."""
        while True:
            await self._clock.sleep(self._max_age_s)
            try:
                await self.refresh(list(self.topics), timeout_s=self._request_timeout_s, doubtful=True)
            except (ClientError, RequestError):
                continue  # the next caller that needs it asks again, and gets the error

    # ------------------------------------------------------------------ cached metadata

    def listen(self, callback: Callable[[TopicLayout], None]) -> None:
        """Call back with every topic layout that arrives."""
        self._listeners.append(callback)

    def broker(self, broker_id: int) -> Broker | None:
        address = self._addresses.get(broker_id)
        return None if address is None else self._connections.broker(address)

    def broker_at(self, info: pb.BrokerInfo) -> Broker:
        """The broker of a response, also if it is not in the metadata yet."""
        return self._connections.broker(address_of(info))

    def brokers_by_id(self) -> dict[int, Broker]:
        return {id_: self._connections.broker(address) for id_, address in self._addresses.items()}

    def brokers(self) -> list[Broker]:
        return [self._connections.broker(address) for address in self._addresses.values()]

    def leader(self, tp: TopicPartition) -> int:
        layout = self.topics.get(tp.topic)
        if layout is None or not 0 <= tp.partition < len(layout.leaders):
            return NO_BROKER
        return layout.leaders[tp.partition]

    def leader_epoch(self, tp: TopicPartition) -> int:
        layout = self.topics.get(tp.topic)
        if layout is None or tp.partition not in layout.partitions:
            return NO_EPOCH
        return layout.epochs[tp.partition]

    async def layout(self, topic: str, *, auto_create: bool, timeout_s: float) -> TopicLayout:
        """The topic's layout, fetched if unknown; UnknownTopicOrPartition after the timeout."""
        found = self.topics.get(topic)
        deadline = self._clock.monotonic() + timeout_s
        attempt, error = 0, None
        while found is None:
            left_s = max(0.001, deadline - self._clock.monotonic())
            try:
                errors = await self.refresh([topic], auto_create=auto_create, timeout_s=left_s)
            except (CannotConnect, RequestTimedOut):
                # The last attempt may just have had too little time left: the earlier error says more.
                if error is None:
                    raise
                raise error from None
            found = self.topics.get(topic)
            if found is None:
                error = errors.get(topic)
                if error is not None and (not error.retriable or not auto_create):
                    raise error
                attempt += 1
                if self._clock.monotonic() + self._backoff(attempt) > deadline:
                    raise error or RequestTimedOut(
                        f"No broker sent metadata of topic {topic!r} within {timeout_s} s."
                    )
                await self._clock.sleep(self._backoff(attempt))
        return found

    # ------------------------------------------------------------------ calls

    async def refresh(
        self,
        topics: Sequence[str],
        *,
        timeout_s: float,
        auto_create: bool = False,
        patient: bool = True,
        doubtful: bool = False,
    ) -> dict[str, RequestError]:
        """Fetch metadata of brokers and these topics; returns errors by topic. Concurrent calls share one request.

        `doubtful`: the cached metadata was wrong. If the response brings no change, ask a second broker as well: a
        broker that is partitioned from the cluster keeps returning stale metadata.
        """
        deadline = self._clock.monotonic() + timeout_s
        request = pb.MetadataRequest(topics=topics, no_topics=not topics, auto_create=auto_create)
        try:
            async with asyncio.timeout(timeout_s):
                await self._refreshing.acquire()
        except TimeoutError:
            raise RequestTimedOut(f"No broker answered Metadata within {timeout_s:g} s.") from None
        try:
            left_s = max(0.001, deadline - self._clock.monotonic())
            before = [self.topics.get(topic) for topic in topics]
            answer = await self.call("Metadata", request, timeout_s=left_s, patient=patient)
            errors = await self._learn(answer)
            if doubtful and before == [self.topics.get(topic) for topic in topics]:
                other = await self.second_opinion("Metadata", request)
                return errors if other is None else await self._learn(other)
            return errors
        finally:
            self._refreshing.release()

    async def second_opinion(self, method: str, request: Any) -> Any | None:
        """The response of a broker other than the last one; None if none answers within a second."""
        others = [address for address in self._addresses.values() if address != self._preferred]
        if not others:
            return None
        broker = self._connections.broker(others[self._chance.below(len(others))])
        try:
            return await self.call_at(broker, method, request, _SECOND_OPINION_S)
        except (ClientError, RequestError):
            return None

    async def _learn(self, answer: pb.MetadataResponse) -> dict[str, RequestError]:
        self.cluster_id = answer.cluster_id
        self.produce_bytes_max = answer.produce_bytes_max
        if answer.brokers:
            self._addresses = {info.id: address_of(info) for info in answer.brokers if info.host}
            await self._connections.keep_only([*self._addresses.values(), *self._bootstrap, self._preferred])
        errors: dict[str, RequestError] = {}
        for topic in answer.topics:
            if topic.HasField("error"):
                errors[topic.name] = exception_of(topic.error)
                self.topics.pop(topic.name, None)
                continue
            led = self._newest(topic)
            leaders = tuple(leader for leader, _ in led)
            layout = TopicLayout(
                topic.name,
                topic.topic_id,
                leaders,
                tuple(epoch for _, epoch in led),
                range(len(leaders)),
                tuple(number for number, leader in enumerate(leaders) if leader in self._addresses),
            )
            self.topics[topic.name] = layout
            for listener in self._listeners:
                listener(layout)
        return errors

    def _newest(self, topic: pb.TopicInfo) -> list[tuple[int, int]]:
        """Leader and epoch of each partition. An older leader epoch never replaces a newer one."""
        leaders = [(i.leader, i.leader_epoch) for i in sorted(topic.partitions, key=lambda i: i.partition)]
        known = self.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            return leaders
        for number, (leader, epoch) in enumerate(zip(known.leaders, known.epochs, strict=True)):
            if number < len(leaders) and leaders[number][1] < epoch:
                leaders[number] = (leader, epoch)
        return leaders

    async def call(
        self, method: str, request: Any, *, timeout_s: float | None = None, patient: bool = True
    ) -> Any:
        """An Admin or Log call to any broker that answers. `patient`: retry until the timeout."""
        timeout_s = self._request_timeout_s if timeout_s is None else timeout_s
        deadline = self._clock.monotonic() + timeout_s
        attempt = 0
        while True:
            failures: dict[str, str] = {}
            for address in self._candidates():
                if not self._open:
                    raise ClientClosed("The client is closed.")
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    raise RequestTimedOut(f"No broker answered {method} within {timeout_s:g} s.")
                if method in _QUESTIONS:
                    left_s = min(left_s, _ATTEMPT_TIMEOUT_S)
                try:
                    return await self.call_at(self._connections.broker(address), method, request, left_s)
                except CannotConnect as error:
                    failures[address] = str(error)
                except RequestTimedOut as error:
                    if method not in _QUESTIONS:
                        raise
                    failures[address] = str(error)
            attempt += 1
            pause_s = self._backoff(attempt)
            if not patient or self._clock.monotonic() + pause_s > deadline:
                raise CannotConnect(
                    " ".join(
                        [await explain(at, why, self._connections.security) for at, why in failures.items()]
                    )
                )
            await self._clock.sleep(pause_s)

    async def call_at(self, broker: Broker, method: str, request: Any, timeout_s: float) -> Any:
        """One call to one broker."""
        with self._reachability.call_to(broker.address):
            answer = await self._call_at(broker, method, request, timeout_s)
        self._preferred = broker.address
        return answer

    async def _call_at(self, broker: Broker, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return await broker.method(method)(request, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise translated(error, broker.address) from None
        except asyncio.CancelledError:
            # gRPC also raises CancelledError if the channel is closed during a call. Propagate it only if our
            # own task was cancelled.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise CannotConnect(f"The connection to {broker.address} was closed.") from None
        except aio.UsageError:
            raise ClientClosed("The client is closed.") from None

    def _candidates(self) -> list[str]:
        return list(dict.fromkeys([self._preferred, *self._addresses.values(), *self._bootstrap]))

    def _backoff(self, attempt: int) -> float:
        base = min(self._backoff_s * 2.0 ** min(attempt - 1, 16), self._backoff_max_s)
        return base * (0.8 + 0.4 * self._chance.fraction())
