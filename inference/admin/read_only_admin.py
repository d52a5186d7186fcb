from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.exceptions import FieldDoesNotExist, PermissionDenied
from django.db.models import JSONField, Model
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse

from inference.admin.filters import BoundedList, BoundedPaginator

COMPARED = frozenset({"", "exact", "in", "isnull", "gt", "gte", "lt", "lte"})  # lookups that a typed filter may use


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """The admin of rows that the service writes and no user edits."""

    about = ""  # what its rows are; shown where a list is empty
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    steered_by = "inference.change_job"  # the permission that its buttons require
    paginator = BoundedPaginator

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        may_see = row is not None and self.has_view_permission(request, row)
        context = self.make_page_context(request, row) if may_see else {}
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def make_page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return what the page of a row shows beside the row's fields, by name in the page's template."""
        return {}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedList]:
        return BoundedList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Return True if the filter compares a column.

        No database is to look for patterns in millions of rows, or to read their JSON documents.
        """
        column, _, how = lookup.partition("__")
        try:
            is_document = isinstance(self.opts.get_field(column), JSONField)
        except FieldDoesNotExist:
            is_document = False
        return how in COMPARED and not is_document and super().lookup_allowed(lookup, value, request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_add_permission = has_delete_permission = has_change_permission

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_view_permission(request, obj) or super().has_change_permission(request, obj)

    def has_steer_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.steered_by)

    def make_button_view(self, act: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        """Return the view that a button posts to."""

        def view(request: HttpRequest, **place: Any) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            if not self.has_steer_permission(request):
                raise PermissionDenied
            return act(request, **place)

        return self.admin_site.admin_view(view)

    def render_page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        """Return a page of our own for users who may see these rows.

        Raises `PermissionDenied` for other users.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        common = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, template, {**common, **context})
