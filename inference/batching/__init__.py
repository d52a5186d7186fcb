"""Which waiting jobs run together, and when. Pure: time is passed in, and only the standard library and
sortedcontainers are imported."""
