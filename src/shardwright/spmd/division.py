"""How devices share a dim: the one definition of what divides, and of what one device holds.

A dim that does not divide is padded: XLA gives the last devices less, or nothing. It pads a dim
that two axes share once for both, so that parts would lie elsewhere than axis by axis: such a dim
must divide.
"""

from __future__ import annotations


def can_divide(size: int, parts: int, n: int, *, pads: bool) -> bool:
    """Whether n more devices can share a dim of which `parts` devices hold a part each.

    >>> can_divide(12, 2, 3, pads=False), can_divide(10, 1, 4, pads=True)
    (True, True)
    >>> can_divide(10, 2, 4, pads=True), can_divide(2, 1, 4, pads=True)
    (False, False)
    """
    if size < parts * n:
        return False
    return size % (parts * n) == 0 or (pads and parts == 1)


def local_size(size: int, parts: int) -> int:
    """What the first of `parts` devices holds of a dim: no other holds more."""
    return -(-size // parts)
