"""The service without its API.

The docstring of each package names what the package owns. A package may import the packages below it in the layers of
pyproject.toml.
"""
