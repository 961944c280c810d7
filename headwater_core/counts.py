"""Counts as people write them."""


def count_text(count: int, noun: str) -> str:
    """Return "1 object", "2 objects"."""
    return f"{count} {noun}{'s' * (count != 1)}"
