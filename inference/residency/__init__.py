"""Which lazy models are in memory, by turns where not all fit. Pure: time is passed in, and only the standard library
is imported."""
