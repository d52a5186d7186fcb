"""The policy that decides which lazy models are in memory; they take turns where not all fit.

It is pure: the time is passed in, and only the standard library is imported.
"""
