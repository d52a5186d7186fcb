from __future__ import annotations

import pickle
from unittest import TestCase
from uuid import UUID, uuid4

from inference.values import uuid_parsing


class UuidParsingTests(TestCase):
    def test_an_id_is_the_one_that_was_passed_on(self) -> None:
        for known in (uuid4(), UUID(int=0), UUID(int=2**128 - 1)):
            for made in (
                uuid_parsing.make_uuid_from_hex(known.hex),
                uuid_parsing.make_uuid_from_hex(known.hex.encode()),
            ):
                self.assertEqual((made, str(made), hash(made)), (known, str(known), hash(known)))
                self.assertEqual(pickle.loads(pickle.dumps(made)), known)

    def test_what_has_not_32_digits_is_refused(self) -> None:
        for digits in ("", "x" * 32, "a" * 31, "a" * 33, "-" + "a" * 31):
            with self.assertRaises(ValueError):
                uuid_parsing.make_uuid_from_hex(digits)
