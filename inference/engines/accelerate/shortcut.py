"""A shortcut through a model, which can be turned on and off."""

from dataclasses import dataclass
from typing import Any, Protocol


class Shortcut(Protocol):
    """A cheaper way to the same answers.

    It is off when it is made. `off` may also be called after `on` raised an error.
    """

    def on(self) -> None: ...
    def off(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Override:
    """A shortcut that sets `value` as an attribute of `owner`, in place of the attribute of its class."""

    owner: Any
    name: str
    value: Any

    def on(self) -> None:
        setattr(self.owner, self.name, self.value)

    def off(self) -> None:
        vars(self.owner).pop(self.name, None)
