"""What an engine call needs whatever the model: which items run together, where, and whose fault a failure is."""
