"""The shortcuts through a model, which `installation` tries out, and leaves out if an answer would change."""
