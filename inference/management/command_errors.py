"""The errors of a command, shown as a sentence and not as a traceback."""

import contextlib
from collections.abc import Iterator

from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError

from inference.catalog.specs import CatalogError
from inference.errors import InferenceError, NoWorker


@contextlib.contextmanager
def show_errors_as_sentences() -> Iterator[None]:
    try:
        yield
    except NoWorker as error:
        raise CommandError(f"{error} It says: {error.raised}" if error.raised else str(error)) from error
    except (CatalogError, InferenceError) as error:
        raise CommandError(str(error)) from error
    except (DatabaseError, InterfaceError) as error:
        raise CommandError(
            f"The database does not answer: {error}. Is it there, and has `manage.py migrate` been run?"
        ) from error
