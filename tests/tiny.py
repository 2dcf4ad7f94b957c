"""The zoo's tiny programs, traced and analyzed once per process; tests do not change them."""

from __future__ import annotations

import functools

from shardwright import zoo
from shardwright.analysis import analyze_program
from shardwright.analysis.analysis import Analysis
from shardwright.program import trace


@functools.cache
def analysis_of(name: str) -> Analysis:
    """A program as it is planned: what it donates is donated."""
    example = zoo.programs("tiny")[name]
    return analyze_program(trace(example.fn, *example.args, donate_argnums=example.donate_argnums))
