"""The replicas of a worker: the device of each, what it has loaded, and the models that it can run."""
