"""Engines, which run models.

Torch is imported below this package only: in child processes, in the process that forks them, and in the processes that
`manage.py tune` measures.
"""
