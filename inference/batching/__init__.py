"""The policy that decides which waiting jobs run together, and when.

It is pure: the time is passed in, and only the standard library and sortedcontainers are imported.
"""
