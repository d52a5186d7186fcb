"""Completions of chats and of texts, whole and in chunks."""
