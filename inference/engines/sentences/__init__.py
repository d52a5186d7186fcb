"""The way from a text to a vector, as the folder of a sentence-transformers model describes it."""
