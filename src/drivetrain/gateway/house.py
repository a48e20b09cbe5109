"""What every visit finds in its gateway: where it is let in, priced, recorded, and how often it may try again."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from drivetrain.gateway.admission import Admission
from drivetrain.gateway.retries import Retries
from drivetrain.gateway.terms import Policies
from drivetrain.gateway.way import Members
from drivetrain.governance import Attempt
from drivetrain.policies.prices import Table
from drivetrain.router import Candidate


class Record(Protocol):
    def attempt(self, attempt: Attempt) -> None: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...


class House(NamedTuple):
    admission: Admission
    record: Record
    prices: Callable[[], Table]
    retries: Retries
    member: Members
    policies: Policies
    version: Callable[[Candidate], str]  # of the model behind it
