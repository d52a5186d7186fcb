"""The state of the running service: living workers, backlog, health and metrics. This package only reads."""
