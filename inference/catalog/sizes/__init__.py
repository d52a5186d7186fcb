"""How long an input is, and how many rows a model runs for it, told without a tokenizer."""
