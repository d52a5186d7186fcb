"""Views of what generates text: completions, and responses."""
