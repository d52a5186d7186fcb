"""A model computed by another backend than torch, in place of its `forward`: exported once, kept, and compared."""
