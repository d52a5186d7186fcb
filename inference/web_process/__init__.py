"""The things that requests of a web process share: compute slots, waits for finished jobs, and figures."""
