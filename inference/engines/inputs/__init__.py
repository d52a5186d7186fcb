"""Inputs of a request, made into what a pipeline takes: checked, bounded, and cut to what the model reads."""
