"""The rows of jobs: bulk reads and writes, changes of state with their notices, and database connections.

The package also reads and writes what operators want of the workers.
"""
