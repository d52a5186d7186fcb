"""The engine for transformers pipelines."""
