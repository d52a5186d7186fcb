"""The project's own kombu transport for Redis: one round trip a fetch, priorities, acknowledgements by job."""
