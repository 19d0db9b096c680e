"""The controller: campaigns, admits brokers, and changes topics and configuration. [S]

Every broker runs one. The first to create `controller` under its lease is elected; the key's create
revision is the epoch that fences all of its writes. Only the image says which broker is controller, so a
lost reply to the campaign needs no handling, and everything is planned from an image at least as new as the
election.

Changes of clients are made one after the other, each checked against the result of the one before it
(`changes.py`). `caretaker.py` handles changes of brokers; it gets a turn at every new
image and each second.

While the metadata store has lost history (`Metadata.refusal`) nothing is changed (design rule 18).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

import structlog

from ottla_broker.controller import keys
from ottla_broker.controller.caretaker import AskPositions, CareConfig, Caretaker
from ottla_broker.controller.changes import ATTEMPTS_MAX, PAUSE_FIRST_S, Changes
from ottla_broker.controller.history import HistoryWindow
from ottla_broker.controller.image import ClusterImage
from ottla_broker.controller.metadata import Metadata
from ottla_broker.controller.names import collision_key
from ottla_broker.controller.planner import (
    NO_DEFAULTS,
    BrokerConfigChanged,
    GroupConfigChanged,
    LeftoversFound,
    Plan,
    TopicConfigChanged,
    TopicDeleted,
    TopicGrown,
    TopicWanted,
    plan,
)
from ottla_broker.controller.registration import Registration
from ottla_broker.controller.topic_checks import (
    Checked,
    Validate,
    check_config,
    check_growth,
    check_new_topic,
    find_topic,
)
from ottla_broker.controller.waiting import wait_for_sign
from ottla_broker.requests import NewTopic, TopicResult
from ottla_core.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotController,
    PolicyViolation,
    RequestError,
    TopicAlreadyExists,
)
from ottla_core.ids import NO_BROKER
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import (
    Branch,
    CreateRevisionIs,
    Delete,
    MetadataStore,
    ModRevisionIs,
    Put,
    StoreError,
)

_log = structlog.get_logger("ottla.controller")

#: Current settings -> new settings; idempotent.
Edit: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]

#: Maximum time between two turns of the controller.
TURN_S = 1.0
#: Topics of one request written at the same time: etcd takes several into one fsync.
TOPICS_IN_FLIGHT_MAX = 8
PRODUCER_ID_BLOCK = 1000
#: Every broker keeps all of them in memory, and only clients delete them.
GROUP_CONFIGS_MAX = 10_000
#: Above etcd's own limit for a request that waits (7 s).
LEFTOVERS_KEEP_S = 10.0
#: How long etcd's history is kept; it is compacted in steps of a tenth of that.
HISTORY_KEEP_S = 600.0


class Controller:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        chance: Chance,
        metadata: Metadata,
        registration: Registration,
        *,
        validate: Validate,
        defaults: Callable[[ClusterImage], Mapping[str, str]] = lambda image: NO_DEFAULTS,
        care: CareConfig | None = None,
        ask_positions: AskPositions | None = None,
        history_keep_s: float = HISTORY_KEEP_S,
    ) -> None:
        """`validate` refuses invalid topic settings (InvalidConfig); `defaults` are the values of settings not set."""
        self._store = store
        self._clock = clock
        self._chance = chance
        self._metadata = metadata
        self._registration = registration
        self._validate = validate
        self._history = HistoryWindow(history_keep_s, history_keep_s / 10)
        self._wake = asyncio.Event()
        #: One change at a time, so that each is checked against the result of the one before it.
        self._changing = asyncio.Lock()
        #: The epoch whose first round is done: every registered broker is admitted, leftovers are removed.
        self._settled_epoch = 0
        self._retired = False
        #: When partitions without a topic were first seen, by their topic id.
        self._unnamed_since: dict[UUID, float] = {}
        self._changes = Changes(store, clock, metadata, lambda: registration.broker.incarnation)
        self._caretaker = Caretaker(
            self._changes,
            clock,
            metadata,
            care or CareConfig(),
            defaults=defaults,
            ask_positions=ask_positions,
        )

    @property
    def epoch(self) -> int:
        """The controller epoch if this process is controller as far as it knows, else 0."""
        return self._changes.epoch

    @property
    def last_revision(self) -> int:
        """The newest revision that this controller has written."""
        return self._changes.last_revision

    @property
    def is_active(self) -> bool:
        """Whether it is elected, has taken over, and may change something."""
        return bool(self.epoch) and self._settled_epoch == self.epoch and self._metadata.refusal is None

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Campaign and, when elected, act as controller; until cancelled."""
        stop = self._metadata.subscribe(lambda old, new: self._wake.set())
        try:
            await self._metadata.following(TURN_S)
            while True:
                self._wake.clear()
                try:
                    await self._take_turn()
                except (StoreError, RequestError) as error:
                    _log.warning("controller turn failed; retrying", reason=str(error))
                    await self._clock.sleep(PAUSE_FIRST_S)
                await wait_for_sign(self._wake, self._clock, TURN_S)
        finally:
            stop()

    async def _take_turn(self) -> None:
        if self._metadata.refusal is not None:
            return
        epoch = self.epoch
        if not epoch:
            if self._metadata.image.controller == NO_BROKER and not self._retired:
                await self._campaign()
            return
        # Not under the lock: a broker that dies does not wait for a large topic that is being created.
        if not await self._caretaker.turn():
            return
        await self._clean_up()
        if self._settled_epoch != epoch:
            self._settled_epoch = epoch
            _log.info("controller is active", epoch=epoch)
        await self._compact_history()

    async def _clean_up(self) -> None:
        """Remove partitions without a topic, unless their topic may still come.

        A transaction of this controller whose reply was lost can take effect seconds later, and create a topic whose
        partitions were removed meanwhile.
        """
        unnamed, now = self._metadata.image.unnamed, self._clock.monotonic()
        self._unnamed_since = {i: self._unnamed_since.get(i, now) for i in unnamed}
        old = frozenset(i for i, since in self._unnamed_since.items() if now - since >= LEFTOVERS_KEEP_S)
        if old and not self._changing.locked():
            async with self._changing:
                await self._changes.settle(lambda image: plan(image, LeftoversFound(old)))

    async def _campaign(self) -> None:
        """Try to become controller. The image shows whether it worked."""
        broker = self._registration.broker
        if not self._registration.lease:
            return
        guard = (
            CreateRevisionIs(keys.CONTROLLER, 0),
            CreateRevisionIs(keys.broker(broker.id), broker.revision),
        )
        value = keys.encode_controller(broker.id, broker.incarnation)
        put = Put(keys.CONTROLLER, value, self._registration.lease)
        await self._store.transact(guard, [Branch((), (put,))])

    async def resign(self) -> None:
        """Resign and never campaign again: part of a graceful stop."""
        self._retired = True
        epoch = self.epoch
        if epoch:
            life = CreateRevisionIs(keys.CONTROLLER, epoch)
            await self._store.transact((life,), [Branch((), (Delete(keys.CONTROLLER),))])

    async def _compact_history(self) -> None:
        revision = self._history.note(self._clock.monotonic(), self._metadata.image.revision)
        if revision is not None:
            await self._store.compact(revision)

    def _required_active(self) -> None:
        self._changes.required_epoch()
        if not self.is_active:
            raise NotController("This broker was just elected controller and is taking over; try again.")

    # ------------------------------------------------------------------ topics

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create each topic completely or not at all. NotController if another broker is controller."""
        self._required_active()
        await self._caretaker.admissions()
        async with self._changing:
            results: dict[int, TopicResult] = {}
            checked: dict[int, Checked] = {}
            named = Counter(topic.name for topic in topics)
            taken = {collision_key(name): name for name in self._metadata.image.topics}
            for index, topic in enumerate(topics):
                try:
                    if named[topic.name] > 1:
                        raise InvalidRequest(f"Topic {topic.name!r} is named more than once.")
                    checked[index] = check_new_topic(
                        self._metadata.image, topic, taken, self._validate, self._chance.below
                    )
                    taken[collision_key(topic.name)] = topic.name
                except RequestError as error:
                    results[index] = TopicResult(topic.name, error)
            waiting = iter(checked.items())

            async def work() -> None:
                for index, wanted in waiting:
                    results[index] = await self._create(wanted, validate_only)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(TOPICS_IN_FLIGHT_MAX, len(checked))):
                    group.create_task(work())
            return [results[index] for index in range(len(topics))]

    async def _create(self, wanted: Checked, validate_only: bool) -> TopicResult:
        name, placement, config = wanted
        # A new id for each attempt: leftovers of a lost attempt then belong to no topic, and are removed.
        tried: list[UUID] = []

        def make(image: ClusterImage) -> Plan:
            existing = image.topics.get(name)
            if existing is not None:
                if existing.id not in tried:
                    raise TopicAlreadyExists(f"Topic {name!r} exists already.")
                tried.append(existing.id)
                return Plan()
            tried.append(self._chance.uuid())
            return plan(image, TopicWanted(name, tried[-1], placement, config))

        try:
            if not validate_only:
                await self._changes.settle(make)
        except RequestError as error:
            return TopicResult(name, error)
        finally:
            self._wake.set()  # Leftovers of a lost attempt, if there are any.
        topic_id = tried[-1] if tried else None
        return TopicResult(name, None, topic_id, len(placement), len(placement[0]), config)

    async def delete_topics(self, names: Sequence[str]) -> list[TopicResult]:
        self._required_active()
        async with self._changing:
            return [await self._delete(name) for name in names]

    async def _delete(self, name: str) -> TopicResult:
        try:
            topic = find_topic(self._metadata.image, name)

            def make(image: ClusterImage) -> Plan:
                found = image.topics.get(name)
                gone = found is None or found.id != topic.id
                return Plan() if gone else plan(image, TopicDeleted(name))

            await self._changes.settle(make)
        except RequestError as error:
            return TopicResult(name, error)
        finally:
            self._wake.set()
        return TopicResult(name, None, topic.id)

    async def grow_topic(
        self,
        name: str,
        total: int,
        assignments: Sequence[tuple[int, ...]] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicResult:
        self._required_active()
        await self._caretaker.admissions()
        async with self._changing:
            try:
                placement = check_growth(self._metadata.image, name, total, assignments, self._chance.below)
                topic = find_topic(self._metadata.image, name)

                def make(image: ClusterImage) -> Plan:
                    found = find_topic(image, name)
                    done = len(found.partitions) >= total
                    return Plan() if done else plan(image, TopicGrown(name, placement))

                if not validate_only:
                    await self._changes.settle(make)
            except RequestError as error:
                return TopicResult(name, error)
            return TopicResult(name, None, topic.id, total, len(placement[0]))

    # ------------------------------------------------------------------ configuration

    async def alter_topic_config(self, name: str, edit: Edit) -> None:
        """Change the settings of a topic. `edit` may be called again, on settings that another request changed
        meanwhile."""
        self._required_active()
        async with self._changing:

            def make(image: ClusterImage) -> Plan:
                topic = find_topic(image, name)
                config = check_config(edit(topic.config), self._validate)
                return Plan() if topic.config == config else plan(image, TopicConfigChanged(name, config))

            await self._changes.settle(make)

    async def alter_broker_config(self, key: str, edit: Edit) -> None:
        """Change the run-time settings of a broker (its id as text) or of all ("")."""
        self._required_active()
        if key and not (key.isascii() and key.isdigit()):
            raise InvalidRequest(f"{key!r} is not a broker id.")
        async with self._changing:

            def make(image: ClusterImage) -> Plan:
                now = dict(image.broker_configs.get(key, {}))
                values = dict(edit(now))
                return Plan() if values == now else plan(image, BrokerConfigChanged(key, values))

            await self._changes.settle(make)

    async def alter_group_config(self, group: str, edit: Edit) -> None:
        """Change the settings of a consumer group, whether it exists or not."""
        self._required_active()
        async with self._changing:

            def make(image: ClusterImage) -> Plan:
                now = dict(image.group_configs.get(group, {}))
                values = dict(edit(now))
                if values and not now and len(image.group_configs) >= GROUP_CONFIGS_MAX:
                    raise PolicyViolation(f"{GROUP_CONFIGS_MAX} groups have settings already; delete some.")
                return Plan() if values == now else plan(image, GroupConfigChanged(group, values))

            await self._changes.settle(make)

    # ------------------------------------------------------------------ producer ids

    async def allocate_producer_ids(self) -> range:
        """Allocate a block of ids. Any broker may do so, elected or not: a compare protects it.

        A block whose reply was lost is simply never used.
        """
        problem = "other brokers took the ids first"
        for attempt in range(ATTEMPTS_MAX):
            if self._metadata.refusal is not None:
                raise CoordinatorNotAvailable(self._metadata.refusal)
            try:
                entry = await self._store.get(keys.PRODUCER_BLOCK)
                first = 0 if entry is None else keys.decode_producer_block(entry)
                compare = ModRevisionIs(keys.PRODUCER_BLOCK, 0 if entry is None else entry.mod_revision)
                put = Put(keys.PRODUCER_BLOCK, keys.encode_producer_block(first + PRODUCER_ID_BLOCK))
                if (await self._store.transact((), [Branch((compare,), (put,))])).all_taken:
                    return range(first, first + PRODUCER_ID_BLOCK)
            except (StoreError, keys.BadValue) as error:
                problem = str(error)
            await self._clock.sleep(PAUSE_FIRST_S * 2**attempt * self._chance.fraction())
        raise CoordinatorNotAvailable(f"No producer ids could be allocated in the metadata store: {problem}.")
