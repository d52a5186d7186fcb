"""Responses in the form of OpenAI's clients, whole and as events."""
