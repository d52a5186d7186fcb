"""The `forward` of a model by another backend than torch: exported once, kept, and compared with torch's answers."""
