"""The process of one replica: it claims batches, runs them through an engine and records their outcomes."""
