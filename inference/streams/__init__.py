"""The text of jobs while it is generated: child processes write it, and the requests that stream it read it."""
