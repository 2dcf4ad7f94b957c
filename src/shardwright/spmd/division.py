"""How an axis divides a dim: the one definition of what divides, and of what one device holds.

A dim that does not divide is padded: XLA gives the last devices less, or nothing. It pads once for
all axes on a dim, so that the boundaries of shards would differ from those of splitting axis by
axis: a dim that two axes split must divide.
"""

from __future__ import annotations


def can_divide(size: int, shards: int, n: int, *, pads: bool) -> bool:
    """Whether an axis of n devices can split a dim that is in so many shards already.

    >>> can_divide(12, 2, 3, pads=False), can_divide(10, 1, 4, pads=True)
    (True, True)
    >>> can_divide(10, 2, 4, pads=True), can_divide(2, 1, 4, pads=True)
    (False, False)
    """
    if size < shards * n:
        return False
    return size % (shards * n) == 0 or (pads and shards == 1)


def local_size(size: int, shards: int) -> int:
    """The size of the first of so many shards of a dim: no other is larger."""
    return -(-size // shards)
