"""A model that is to compute something in a cheaper way is tried out on these texts when it is loaded."""

import torch

TEXTS = ("a", "a b c d e f")  # of two lengths; a few tokens for any tokenizer

EXACT = {torch.float32: 1e-4, torch.float64: 1e-4}  # relative to the largest value; 0.02 for shorter types


def same(values: torch.Tensor, expected: torch.Tensor) -> bool:
    """Up to what the order of a sum changes."""
    tolerance = EXACT.get(expected.dtype, 0.02) * max(1.0, expected.abs().max().item())
    return torch.allclose(values, expected, rtol=0.0, atol=tolerance)
