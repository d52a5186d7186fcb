"""The formatter of the web server's own lines (project/granian.json), for which no module stays imported.

The server's main process forks the processes that serve. After a reload for a new version these would else run its code
with modules of the old one. They call `make_formatter` too, by this name, which their main process has from the old
version: it stays.
"""

import logging
import sys


def make_formatter() -> logging.Formatter:
    """Return the formatter that all other lines have, and forget the modules of this service, this one included."""
    from inference.telemetry import logs

    formatter = logs.make_formatter()
    for name in list(sys.modules):
        if name.partition(".")[0] == "inference":
            del sys.modules[name]
    return formatter
