"""A model's `forward` by another backend than torch, exported once, kept, and compared with torch's answers."""
