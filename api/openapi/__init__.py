"""Descriptions of operations and answers in the OpenAPI document."""
