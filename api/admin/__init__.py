"""The operator's pages of what the API stores."""

from api.admin.api_keys import ApiKeyAdmin
from api.admin.file_batches import FileBatchAdmin
from api.admin.stored_files import StoredFileAdmin

__all__ = ["ApiKeyAdmin", "FileBatchAdmin", "StoredFileAdmin"]
