"""The contents of answers: jobs, models, generated texts, vectors, labels, sounds, and advice about problems."""
