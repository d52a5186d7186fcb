"""The worker: its main process consumes messages and forms batches, its child processes run the models.

From a message to its end: `consumer`, `scheduling`, `dispatch`, `processes`, `child`, and `scheduling` again.
"""
