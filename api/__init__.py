"""The HTTP interface. Its packages import only what is below them in the layers of pyproject.toml, and no broker."""
