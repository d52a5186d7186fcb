"""One row of a generating batch: its prompt, the choice of its next token, its text and how it ends."""
