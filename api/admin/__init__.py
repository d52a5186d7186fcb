"""The operator's pages of what the API stores."""

from api.admin.api_keys import ApiKeyAdmin

__all__ = ["ApiKeyAdmin"]
