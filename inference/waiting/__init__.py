"""The waits of requests: a waiting request lends its compute slot, and is woken when its job is finished."""
