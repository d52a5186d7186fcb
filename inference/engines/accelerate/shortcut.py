"""A shortcut through a model, which can be turned on and off."""

from dataclasses import dataclass
from typing import Any, Protocol


class Shortcut(Protocol):
    """A cheaper way to the same answers.

    It is off when it is made. `turn_off` may also be called after `turn_on` raised an error.
    """

    def turn_on(self) -> None: ...
    def turn_off(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Override:
    """A shortcut that sets `value` as an attribute of `owner`, in place of the attribute of its class."""

    owner: Any
    name: str
    value: Any

    def turn_on(self) -> None:
        setattr(self.owner, self.name, self.value)

    def turn_off(self) -> None:
        vars(self.owner).pop(self.name, None)
