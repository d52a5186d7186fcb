"""Threads of a worker's main process beside its event loop: its row, its heartbeat and its housekeeping."""
