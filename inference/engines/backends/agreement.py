"""The agreement of a backend's answers with those of torch, on texts of several lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engines.runtime import parity

SENTENCES = (
    "Fine.",
    "The parcel never arrived!",
    "Where can I change my password?",
    "She moved to Lisbon in 2019 and has worked for a small publisher since.",
    "I would not buy it again: the battery lasts three hours, and the screen is hard to read outside.",
    "Shares of the company fell by 4% on Tuesday, after it had told investors that sales in Europe were slow.",
    "A great film, long as it is; the last scene alone is worth the ticket.",
    "Please cancel my order, number 77-1043, and send the money back to the card that I paid with.",
)
# Short and long texts: models cut those that are too long for them.
TEXTS = (*SENTENCES, " ".join(SENTENCES[:4]), " ".join(SENTENCES[4:]), " ".join(SENTENCES), " ".join(SENTENCES * 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The agreement of two sets of answers. A label is the best of some scores; states have no labels."""

    difference: float  # the largest between two numbers, as a part of the largest number
    same: int = 0  # labels that are the same in both
    labels: int = 0

    @property
    def share(self) -> float:
        return self.same / self.labels if self.labels else 1.0

    def __str__(self) -> str:
        labels = f"{self.same} of {self.labels} labels are those of torch in float32, " if self.labels else ""
        return f"{labels}numbers differ by at most {self.difference:.2g} of the largest"


def compare_answers(
    found: Sequence[parity.Answer], expected: Sequence[parity.Answer], *, labels: bool = True
) -> Agreement:
    pairs = [pair for answers in zip(found, expected, strict=True) for pair in zip(*answers, strict=True)]
    return Agreement(
        difference=max((parity.measure_relative_difference(*pair) for pair in pairs), default=0.0),
        same=sum(int((one.argmax(-1) == other.argmax(-1)).sum()) for one, other in pairs) if labels else 0,
        labels=sum(other.argmax(-1).numel() for _, other in pairs) if labels else 0,
    )
