"""The formatter of the web server's own lines (project/granian.json), for which no module stays imported.

The server's main process forks the processes that serve. After a reload for a new version these would else run its code
with modules of the old one. They call `make_formatter` too, by this name, which their main process has from the old
version: it stays.
"""

import logging
import sys


def make_formatter() -> logging.Formatter:
    """Return the formatter that all other lines have, and forget what was imported for it, this module included."""
    before = set(sys.modules)
    from inference.telemetry import logs

    formatter = logs.make_formatter()
    own = __name__.partition(".")[0]
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if package == own or (name not in before and package not in sys.stdlib_module_names):
            del sys.modules[name]
    return formatter
