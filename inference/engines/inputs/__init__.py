"""From the values of a request to what a pipeline takes: checked, bounded, and cut to what the model reads."""
