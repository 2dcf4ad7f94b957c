"""check(): a hand-written sharding judged with the same eyes as a plan."""

from __future__ import annotations
