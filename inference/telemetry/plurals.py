"""The counts of things in words."""


def format_count(count: int, noun: str, verb: tuple[str, str] = ("", "")) -> str:
    """Return "1 job" or "1,234 jobs", with the verb behind it in its singular or plural."""
    is_one = count == 1
    return f"{count:,} {noun}{'' if is_one else 's'} {verb[0] if is_one else verb[1]}".rstrip()
