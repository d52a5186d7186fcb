"""An engine in ten lines: which language a text is in, by how often each letter comes. Loaded once a replica."""

from typing import Any

import torch

from inference.engines.base import Engine

LETTERS = "abcdefghijklmnopqrstuvwxyzäö"


class Language(Engine):
    def load(self, device: str) -> None:
        self.device, self.names = device, list(self.spec.options)
        self.profiles = self.profile(list(self.spec.options.values()))

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        nearest = (self.profile(inputs) @ self.profiles.T).argmax(dim=1)
        return [self.names[number] for number in nearest.tolist()]

    def profile(self, texts: list[str]) -> torch.Tensor:
        counts = [[text.lower().count(letter) for letter in LETTERS] for text in texts]
        return torch.nn.functional.normalize(torch.tensor(counts, dtype=torch.float32, device=self.device))
