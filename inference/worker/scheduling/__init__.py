"""The jobs that a worker holds, from their message to the end of their batch, and the choice of those that run next."""
