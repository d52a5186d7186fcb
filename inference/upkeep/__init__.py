"""The upkeep by every worker now and then: it finds lost jobs, removes what is old, and continues acts on many jobs."""
