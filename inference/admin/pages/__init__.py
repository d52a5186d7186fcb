"""The operator's pages: what each shows and does."""
