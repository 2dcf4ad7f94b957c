"""Benchmarks time and judge the search itself: no plan is looked up."""

import os

os.environ["SHARDWRIGHT_CACHE"] = ""
