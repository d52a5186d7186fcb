"""The things that requests of a web process share: the writer, slots, waits for finished jobs, and figures."""
