"""Bytes, seconds and counts as people read them."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """1.5 GB, in powers of ten as devices are sold."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Three digits and a unit: 4.56 s, 349 ms, 12.0 us.

    >>> human_seconds(0.34863)
    '349 ms'
    """
    if not seconds:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        shown = seconds * scale
        if shown >= 0.9995 or unit == "ns":
            digits = max(0, 3 - len(str(int(round(shown, 2)))))
            return f"{shown:.{min(digits, 2)}f} {unit}"
    raise AssertionError


def human_count(count: float) -> str:
    """Three digits: 114k, 1.2M, 950.

    >>> human_count(114036.0)
    '114k'
    """
    for unit in ("", "k", "M", "G"):
        if count < 999.5 or unit == "G":
            return f"{count:.{0 if count >= 99.5 or not unit else 1}f}{unit}"
        count /= 1000
    raise AssertionError
