"""What columns hold, beside what Django has: ids, documents, indexes. Imports the clock only."""
