import sqlite3
from unittest.mock import Mock, patch

import redis
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError, ProgrammingError
from django.test import SimpleTestCase

from inference import connection_retries
from inference.connection_retries import Backoff, ServerErrorKind, classify_server_error, retry_while_away


def caused(error: Exception, **attributes: object) -> Exception:
    cause = Exception()
    for name, value in attributes.items():
        setattr(cause, name, value)
    error.__cause__ = cause
    return error


class KindTests(SimpleTestCase):
    def test_each_error_is_of_one_kind(self) -> None:
        cases = [
            (OperationalError("connection refused"), ServerErrorKind.CONNECTION),
            (InterfaceError("connection already closed"), ServerErrorKind.CONNECTION),
            (caused(OperationalError(), sqlstate="57P01"), ServerErrorKind.CONNECTION),
            (caused(OperationalError(), sqlstate="57014"), ServerErrorKind.CONNECTION),
            (caused(OperationalError(), sqlstate="40P01"), ServerErrorKind.CONNECTION),
            (caused(OperationalError(), sqlstate="53100"), ServerErrorKind.CONNECTION),
            (caused(DataError(), sqlstate="22P05"), ServerErrorKind.DATA),
            (caused(IntegrityError(), sqlstate="23505"), ServerErrorKind.DATA),
            (caused(OperationalError(), sqlstate="54000"), ServerErrorKind.DATA),
            (caused(ProgrammingError(), sqlstate="42P01"), ServerErrorKind.STATEMENT),
            (caused(OperationalError(), sqlite_errorcode=sqlite3.SQLITE_BUSY_SNAPSHOT), ServerErrorKind.CONNECTION),
            (caused(OperationalError(), sqlite_errorcode=sqlite3.SQLITE_FULL), ServerErrorKind.CONNECTION),
            (caused(OperationalError(), sqlite_errorcode=sqlite3.SQLITE_ERROR), ServerErrorKind.STATEMENT),
            (caused(IntegrityError(), sqlite_errorcode=sqlite3.SQLITE_CONSTRAINT_UNIQUE), ServerErrorKind.DATA),
            (DatabaseError("whatever"), ServerErrorKind.STATEMENT),
            (redis.ConnectionError(), ServerErrorKind.CONNECTION),
            (redis.BusyLoadingError(), ServerErrorKind.CONNECTION),
            (redis.OutOfMemoryError(), ServerErrorKind.CONNECTION),
            (redis.ResponseError("MISCONF Errors writing to the AOF file"), ServerErrorKind.CONNECTION),
            (redis.ResponseError("WRONGTYPE"), ServerErrorKind.STATEMENT),
            (redis.DataError(), ServerErrorKind.DATA),
            ("\ud800".encode, ServerErrorKind.DATA),
            (KeyError("model"), ServerErrorKind.BUG),
        ]
        for error, kind in cases:
            with self.subTest(error=error):
                self.assertIs(classify_server_error(_raised(error)), kind)


def _raised(error: object) -> BaseException:
    if isinstance(error, BaseException):
        return error
    try:
        error()  # type: ignore[operator]
    except Exception as raised:
        return raised
    raise AssertionError("nothing raised")


class PatienceTests(SimpleTestCase):
    def test_a_lost_connection_is_tried_again_until_the_limit(self) -> None:
        tries, slept = [], list[float]()

        def call() -> None:
            tries.append(1)
            raise OperationalError("away")

        clock = Mock(monotonic=lambda: sum(slept), sleep=slept.append)
        with patch.object(connection_retries, "time", clock), self.assertRaises(OperationalError):
            retry_while_away(call, limit_s=10.0)
        self.assertGreater(sum(slept), 10.0)
        self.assertLess(sum(slept[:-1]), 10.0)
        self.assertEqual(len(tries), len(slept) + 1)

    def test_what_is_refused_is_not_tried_again(self) -> None:
        tries = []

        def call() -> None:
            tries.append(1)
            raise DataError("no")

        with self.assertRaises(DataError):
            retry_while_away(call, limit_s=60)
        self.assertEqual(len(tries), 1)

    def test_pauses_grow_to_their_bound(self) -> None:
        backoff = Backoff(first_s=1, longest_s=8)
        found = [backoff.take_next_pause_s() for _ in range(6)]
        for pause, expected in zip(found, [1, 2, 4, 8, 8, 8], strict=True):
            self.assertTrue(0.8 * expected <= pause <= 1.2 * expected)
        backoff.reset()
        self.assertLessEqual(backoff.take_next_pause_s(), 1.2)
