"""What models there are and what they take: models.toml read and checked, inputs and parameters validated, lengths
estimated. Imports no Django model and no torch, and of the broker what its queues are called.
"""
