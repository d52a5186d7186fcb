from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from inference.admin.filters import BoundedPaginator


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none when it runs
    """Facts that the service writes and nobody edits."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    paginator = BoundedPaginator

    class Media:
        css = {"all": ("inference/admin.css",)}

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_delete_permission = has_change_permission

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or super().has_change_permission(request, obj)
