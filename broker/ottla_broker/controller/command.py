"""Administrative commands as data: a request, its validation and its plan. [P]

Each command is a frozen dataclass in a file of its own in `commands/`, whose name is the command's name between
brokers; `command_table.py` finds it there. `service.py` executes any command, `service/controller_calls.py` sends it
to the controller, and `command_json.py` derives its JSON from the fields. So a new command is one file.

A command consists of changes that succeed or fail independently. A change is planned again after a lost reply or a
race, from the newest image, until its plan is empty: the plan of a finished change must be empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from ottla_broker.controller.planner import Plan
from ottla_broker.metadata.image import ClusterImage
from ottla_core.errors import RequestError
from ottla_core.ports.chance import Chance

R = TypeVar("R")


class Tools(NamedTuple):
    """What planning needs beside the image."""

    #: Raises InvalidConfig for invalid topic settings; its result is ignored.
    validate: Callable[[Mapping[str, str]], object]
    chance: Chance


class Change(Protocol):
    def plan(self, image: ClusterImage) -> Plan:
        """The writes; empty when nothing is left to do. RequestError if the change is refused."""

    def result(self, error: RequestError | None) -> Any:
        """The outcome of the change; may raise the error."""


class Command(ABC, Generic[R]):
    __slots__ = ()

    #: The type R, for its JSON.
    result_type: ClassVar[Any]
    #: It places replicas: brokers that have just registered are admitted first.
    places_replicas: ClassVar[bool] = False
    #: Changes written at the same time: etcd takes several into one fsync.
    in_flight_max: ClassVar[int] = 1

    @classmethod
    def name(cls) -> str:
        return cls.__module__.rpartition(".")[2]

    @abstractmethod
    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[Change]:
        """RequestError refuses the whole command."""

    @abstractmethod
    def answer(self, results: list[Any]) -> R:
        """The result of the command, from the results of its changes in their order."""

    def after_retry(self, result: R, before: ClusterImage, now: ClusterImage) -> R:
        """The result when an earlier attempt, whose response was lost, may have been executed.

        A change that is found made, but was not made before the first attempt, counts as made by this command.
        """
        return result


class SimpleCommand(Command[None]):
    """One change without a result: most commands."""

    __slots__ = ()

    result_type = None

    @abstractmethod
    def plan(self, image: ClusterImage, tools: Tools) -> Plan:
        """The writes; empty when nothing is left to do. RequestError refuses the command."""

    def changes(self, image: ClusterImage, tools: Tools) -> Sequence[Change]:
        return [_OnlyChange(self, tools)]

    def answer(self, results: list[Any]) -> None:
        return None


class _OnlyChange(NamedTuple):
    command: SimpleCommand
    tools: Tools

    def plan(self, image: ClusterImage) -> Plan:
        return self.command.plan(image, self.tools)

    def result(self, error: RequestError | None) -> None:
        if error is not None:
            raise error
