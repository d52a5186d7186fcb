"""Celery calls these modules in a worker.

Beside them, only `project` and `inference.broker` import Celery, kombu or amqp.
"""
