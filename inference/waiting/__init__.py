"""What a request does while it waits: it lends its compute slot, and is woken when its job is finished."""
