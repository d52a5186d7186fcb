"""A discrete-event simulation of a model's replicas under different batching policies."""
