"""The HTTP interface. Packages import what stands below them in the layers of pyproject.toml, and no broker."""
