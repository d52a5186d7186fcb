"""What the folder of a sentence-transformers model asks for between a text and its vector."""
