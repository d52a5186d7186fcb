"""Template tags of the operator's pages."""

import datetime
from collections.abc import Iterable
from typing import Any

from django import template

from inference import clock
from inference.admin import navigation
from inference.admin.pages import dashboard, workers
from inference.admin.rendering import display
from inference.catalog.lookup import get_catalog_or_empty

register = template.Library()
register.filter("ago", display.format_age)
register.filter("badge", display.render_badge)
register.filter("live_state", workers.find_live_state)
register.filter("visible", display.escape_text)
register.filter("meter", display.draw_meter)
register.filter("took", display.format_duration)
register.simple_tag(navigation.list_pages, name="places")


@register.filter
def age(moment: datetime.datetime | None) -> str:
    return display.format_duration(clock.now() - moment if moment else None)


@register.simple_tag
def dashboard_now() -> dict[str, Any]:
    return {**dashboard.collect_dashboard(), "names": list(get_catalog_or_empty())}


@register.filter
def listed(names: Iterable[str]) -> str:
    return display.escape_text(", ".join(names))
