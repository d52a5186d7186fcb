"""Job rows: as the database takes them, over which connection, and each change of a job's state with its notice. And
what operators want of the workers."""
