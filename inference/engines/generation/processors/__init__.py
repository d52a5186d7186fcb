"""Logits processors, which change or read the scores of the next token."""
