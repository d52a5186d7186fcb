"""Requests: their bodies, fields and queries, all bounded before they are expanded into objects."""
