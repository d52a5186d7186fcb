"""The state of the running service: living workers, backlog, health and metrics, which are only read here."""
