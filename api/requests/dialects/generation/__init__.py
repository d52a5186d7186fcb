"""Requests of OpenAI's and Hugging Face's clients for generated text."""
