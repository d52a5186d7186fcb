"""The worker: its main process consumes messages and forms batches, its child processes run the models.

A job passes through `celery_worker`, `scheduling`, `dispatcher`, `processes`, `child`, and `scheduling` again.
"""
