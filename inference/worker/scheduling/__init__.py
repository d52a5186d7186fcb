"""The jobs that a worker holds, from their message to the end of their batch, and which of them run next."""
