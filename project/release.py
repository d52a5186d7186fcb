"""The release of this code: the commit that is checked out."""

from pathlib import Path


def read_commit(folder: Path) -> str:
    """Return the first 10 characters of the commit's hash, or an empty string if there is no checkout."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        kind, _, ref = head.partition(": ")
        return ((git / ref).read_text() if kind == "ref" else head)[:10]
    except OSError:
        return ""
