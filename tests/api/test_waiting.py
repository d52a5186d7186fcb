"""Room for waiting requests is shared: who takes much leaves some for whoever comes."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

from django.contrib.auth import get_user_model
from django.test import SimpleTestCase, override_settings

from api.models import ApiKey
from inference import process_resources
from inference.web_process.wait_slots import WaitSlots
from tests import echo
from tests.api.base import ApiTestCase
from tests.conditions import PATIENCE_S


@override_settings(MAX_WAITING_REQUESTS=16, API_KEY_REQUIRED=True)
class SlotTests(SimpleTestCase):
    def setUp(self) -> None:
        self.slots = WaitSlots()
        self.stack = self.enterContext(contextlib.ExitStack())

    def granted(self, principal: str, requests: int) -> int:
        return sum(self.stack.enter_context(self.slots.limit_wait(principal, 5.0)) > 0 for _ in range(requests))

    def test_one_principal_takes_half_and_each_newcomer_finds_room(self) -> None:
        self.assertEqual([self.granted(name, 100) for name in "abcd"], [8, 4, 2, 1])

    @override_settings(API_KEY_REQUIRED=False)
    def test_without_keys_there_is_nobody_to_keep_room_for(self) -> None:
        self.assertEqual(self.granted("", 100), 16)

    def test_what_was_given_back_can_be_taken_again(self) -> None:
        for _ in range(3):
            self.assertEqual(self.granted("a", 100), 8)
            self.stack.close()

    def test_who_does_not_wait_needs_no_room(self) -> None:
        self.granted("a", 100)
        with self.slots.limit_wait("a", 0.0) as granted_s:
            self.assertEqual(granted_s, 0.0)


@override_settings(MAX_WAITING_REQUESTS=4, API_KEY_REQUIRED=True)
class ShareTests(ApiTestCase):
    def key_of(self, name: str) -> dict[str, str]:
        user, _ = get_user_model().objects.get_or_create(username=name)
        return {"Authorization": f"Bearer {ApiKey.objects.issue_key(owner=user)[1]}"}

    def test_long_polls_of_one_user_leave_room_for_another_s_blocking_call(self) -> None:
        noisy, again, quiet = self.key_of("noisy"), self.key_of("noisy"), self.key_of("quiet")
        owner = get_user_model().objects.get(username="noisy")
        run, body = f"/v1/models/echo?timeout={PATIENCE_S:g}", {"inputs": "x"}
        with contextlib.ExitStack() as polls:
            for _ in range(50):
                polls.enter_context(process_resources.current.wait_slots.limit_wait(owner.pk, 300.0))
            self.idle_worker()
            for headers in (noisy, again):
                problem = self.assert_problem(self.post(run, body, headers=headers), 504, "not_finished")
                self.assertIn("Too many of your requests wait", problem["detail"])
            with self.worker(), ThreadPoolExecutor(1) as client:
                answer = client.submit(self.post, run, body, headers=quiet).result()
        self.assertEqual((answer.status_code, answer.json()), (200, echo.expected("x")))
