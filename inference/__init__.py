"""The service without its API.

The docstring of each package says what it owns. A package may import the packages below it in the layers of
pyproject.toml.
"""
