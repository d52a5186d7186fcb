"""Estimates of how long an input is and how many rows a model runs for it, made without a tokenizer."""
