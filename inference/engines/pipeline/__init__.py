"""The engine for transformers pipelines: loads one, feeds it, and stacks what may run together."""
