"""The things that requests of a web process share: the writer, slots, rates, waits for finished jobs, and figures."""
