"""Batches of models that generate step by step, which jobs join and leave between two steps."""
