"""Reads from the folder of a sentence-transformers model how a text becomes a vector, and does it."""
