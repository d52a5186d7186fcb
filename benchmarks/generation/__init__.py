"""Generated text: prompts of which each asks for a number of tokens, at servers that may stream their answers."""
