"""Template tags of the operator's pages."""

from typing import Any

from django import template
from django.utils import timezone

from inference.admin import dashboard, display, workers

register = template.Library()
register.filter("ago", display.ago)
register.filter("badge", display.badge)
register.filter("live_state", workers.live_state)
register.filter("visible", display.visible)


@register.filter
def age(moment: Any) -> str:
    return display.duration(timezone.now() - moment if moment else None)


@register.inclusion_tag("inference/dashboard.html")
def dashboard_now() -> dict[str, Any]:
    return {
        "problems": dashboard.file_problems(),
        "models": dashboard.model_rows(),
        "workers": dashboard.worker_rows(),
        "failures": dashboard.failure_rows(),
        "finished": dashboard.finished_in_last_hour(),
    }
