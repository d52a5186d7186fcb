"""What every worker does now and then: finds what was lost, removes what is old, goes on with acts on many jobs."""
