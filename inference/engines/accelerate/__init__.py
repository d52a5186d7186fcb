"""The shortcuts through a model, which `install` tries out, and leaves out if an answer would change."""
