"""Template tags of the operator's pages."""

from typing import Any

from django import template

from inference.admin import dashboard, display

register = template.Library()
register.filter("badge", display.badge)
register.filter("visible", display.visible)


@register.inclusion_tag("inference/dashboard.html")
def dashboard_now() -> dict[str, Any]:
    return {
        "models": dashboard.model_rows(),
        "workers": dashboard.worker_rows(),
        "failures": dashboard.failure_rows(),
        "finished": dashboard.finished_in_last_hour(),
    }
