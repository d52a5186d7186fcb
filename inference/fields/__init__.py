"""The fields and indexes that Django does not have: ids and documents. The package imports the clock only."""
