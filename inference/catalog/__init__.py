"""The catalog: models.toml is read and checked, inputs and parameters are validated, and lengths are estimated.

The package imports no Django model and no torch, and of the broker only the names of its queues.
"""
