"""Real client libraries of other projects, unmodified, against the whole service: what works, and what is refused."""
