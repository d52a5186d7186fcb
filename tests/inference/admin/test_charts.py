"""The charts of the first page: what they ask for, of whom, and what they draw."""

from datetime import timedelta
from unittest.mock import patch

from django.contrib.auth.models import Permission, User
from django.test import TestCase
from django.urls import reverse

from inference import clock
from inference.figures.tally_rows import floor_to_tick, make_datetime
from inference.models import Figure, Grain
from tests.browser import WIDE
from tests.conditions import ago
from tests.inference.admin.pages import BrowserCase
from tests.inference.test_admin import make_worker

FIGURES = reverse("charts:figures")


class TestFigures(TestCase):
    def setUp(self) -> None:
        self.user = User.objects.create_user("looks", is_staff=True)
        self.user.user_permissions.add(Permission.objects.get(codename="view_job"))
        self.client.force_login(self.user)

    def test_they_are_of_the_requested_range_and_model(self) -> None:
        start = make_datetime(floor_to_tick(ago().timestamp()))
        for model, count in (("echo", 2), ("other", 3)):
            Figure.objects.create(grain=Grain.TICK, start=start, model=model, tally={"ended": {"succeeded": count}})
        for name in ("15m", "day", "month"):
            self.assertEqual(self.client.get(FIGURES, {"range": name}).json()["ended"], {"succeeded": 5})
        self.assertEqual(self.client.get(FIGURES, {"model": "echo"}).json()["ended"], {"succeeded": 2})

    def test_what_is_no_range_is_refused(self) -> None:
        self.assertEqual(self.client.get(FIGURES, {"range": "year"}).status_code, 400)
        self.assertEqual(self.client.get(FIGURES, {"model": "x" * 101}).status_code, 400)

    def test_nobody_else_gets_them(self) -> None:
        self.user.user_permissions.clear()
        self.client.force_login(self.user)
        self.assertEqual(self.client.get(FIGURES).status_code, 403)
        self.client.logout()
        self.assertEqual(self.client.get(FIGURES).status_code, 302)


class TestPage(BrowserCase):
    """In a browser: what a page complains of fails the test in its end."""

    def setUp(self) -> None:
        super().setUp()
        self.log_in()
        self.browser.show(WIDE)
        self.tick = floor_to_tick(ago().timestamp())
        self.enterContext(
            patch.object(clock, "estimate_now_s", return_value=self.tick + 1.0)
        )  # however long a page takes

    def ended(self, ago_s: int = 15, **counts: int) -> None:
        ends = {end.replace("_", " ", 1): count for end, count in counts.items()}
        start = make_datetime(self.tick - ago_s)
        Figure.objects.create(grain=Grain.WRITTEN, start=start, model="embeddings", tally={"ended": ends})

    def drawn(self, at_least: int = 1) -> None:
        self.browser.wait_for(f"document.getElementById('charts-of').dataset.drawn >= {at_least}")

    def look(self) -> None:
        """As somebody who comes back to the tab."""
        self.value("document.dispatchEvent(new Event('visibilitychange'))")

    def outcomes(self) -> str:
        return str(self.value("document.getElementById('charts-ended').innerText"))

    def test_what_happens_is_drawn_without_loading_the_page_again(self) -> None:
        self.ended(succeeded=30)
        self.open("/admin/")
        self.drawn()
        self.assertEqual(self.outcomes(), "30 succeeded")
        self.assertIn("succeeded 2", self.value("document.querySelector('#charts .legend').innerText"))
        self.assertGreater(len(self.value("document.querySelector('#charts .line').getAttribute('d')")), 300)
        self.value("window.isTheSame = true")
        self.ended(succeeded=1, failed_out_of_memory=7)
        self.look()
        self.browser.wait_for("document.getElementById('charts-ended').innerText.includes('7 out_of_memory')")
        self.assertTrue(self.value("window.isTheSame"))
        link = self.value("document.querySelector('#charts-ended .badge-failed').getAttribute('href')")
        self.assertEqual(link, "/admin/inference/job/?status__exact=failed&error_code=out_of_memory")

    def test_when_which_error_began_is_seen_and_a_moment_of_one_run_too(self) -> None:
        self.ended(ago_s=300, failed_out_of_memory=7, failed_crashed=2)
        start = make_datetime(self.tick - 600)
        Figure.objects.create(
            grain=Grain.WRITTEN, start=start, model="embeddings", tally={"run": {"sum": 1.0, "in": {"40": 1}}}
        )
        self.open("/admin/")
        self.drawn()
        of = "Array.from(document.querySelectorAll('#charts .chart')).find((chart) => chart.innerText.startsWith('{}'))"
        failures, run = of.format("Failures a minute"), of.format("Run")
        self.assertIn("out_of_memory", self.value(f"{failures}.querySelector('.legend').innerText"))
        self.assertEqual(self.value(f"{failures}.querySelectorAll('.line').length"), 2)
        self.assertFalse(self.value(f"{failures}.classList.contains('empty')"))
        self.assertEqual(self.value(f"{run}.querySelectorAll('.dots').length"), 2)

    def test_each_number_at_an_axis_is_read_in_full(self) -> None:
        now = {"samples": 1, "memory": {"embeddings": 200 * 2**20}, "replicas": {"ready": 12_345, "busy": 0}}
        Figure.objects.create(grain=Grain.TICK, start=make_datetime(self.tick), model="", tally={"now": now})
        self.open("/admin/")
        self.drawn()
        texts = "Array.from(document.querySelectorAll('#charts svg text'))"
        self.assertGreaterEqual(self.value(f"Math.min(...{texts}.map((text) => text.getBBox().x))"), 0)
        shown = self.value(f"{texts}.map((text) => text.textContent)")
        self.assertLessEqual({"128 MiB", "256 MiB"}, set(shown))

    def test_times_are_those_of_the_rest_of_the_admin_wherever_its_reader_is(self) -> None:
        self.browser.move_to("Asia/Kathmandu")  # five hours and three quarters ahead
        self.ended(succeeded=30)
        self.open("/admin/")
        self.drawn()
        self.value("document.querySelector('#charts svg').dispatchEvent(new PointerEvent('pointermove'))")
        text = self.value("document.getElementById('charts-told').textContent")
        hours = {f"{make_datetime(self.tick) - timedelta(minutes=ago):%Y-%m-%d %H:}" for ago in (0, 16)}
        self.assertTrue(text.startswith(tuple(hours)) and text.endswith(" UTC"), text)

    def test_a_range_and_a_model_are_chosen_and_kept_in_the_address(self) -> None:
        self.ended(succeeded=30)
        self.open("/admin/")
        self.drawn()
        self.value("document.querySelector('[value=day]').click()")
        self.drawn(2)
        self.assertEqual(self.value("location.hash"), "#day/")
        self.browser.open("about:blank")
        self.open("/admin/#month/embeddings")
        self.browser.wait_for("document.querySelector('#charts-of select').value === 'embeddings'")

    def test_what_is_chosen_while_an_answer_is_on_its_way_is_drawn_at_once(self) -> None:
        self.open("/admin/")
        self.drawn()
        self.value("asked = []; own = fetch; window.fetch = (at, more) => (asked.push(at), own(at, more)); 1")
        self.value("for (const range of ['day', 'month']) document.querySelector(`[value=${range}]`).click()")
        self.browser.wait_for("asked.some((address) => address.includes('range=month'))")

    def test_nothing_is_requested_while_nobody_looks(self) -> None:
        self.open("/admin/")
        self.drawn()
        self.value("Object.defineProperty(document, 'hidden', {value: true, configurable: true}); 1")
        self.value(
            "window.asked = 0; { const own = fetch; window.fetch = (...all) => { asked += 1; return own(...all); } }"
        )
        self.look()
        self.look()
        self.assertEqual(self.value("asked"), 0)
        self.value("Object.defineProperty(document, 'hidden', {value: false, configurable: true}); 1")
        self.look()
        self.browser.wait_for("asked >= 2")

    def test_the_tables_follow_and_a_link_keeps_the_focus(self) -> None:
        make_worker(name="first@host")
        self.open("/admin/")
        self.drawn()
        self.value("Array.from(document.querySelectorAll('#now a')).find((a) => a.text === 'first@host').focus()")
        make_worker(name="second@host")
        self.look()
        self.browser.wait_for("document.getElementById('now').innerText.includes('second@host')")
        self.assertEqual(self.value("document.activeElement.text"), "first@host")
