"""Ties: how values around a loop or branch are joined to values of its bodies."""

from __future__ import annotations

from enum import Enum
from typing import Literal

# What a region is the body of.
Kind = Literal["function", "scan", "while_cond", "while", "cond", "shard_map"]


class Tie(Enum):
    """What a tie joins; its value is the name of the op in a printed program."""

    SCAN_CONST = "scan.const"  # the same in every trip
    SCAN_INIT = "scan.init"  # what the first trip gets
    SCAN_XS = "scan.xs"  # a stack of which each trip gets one entry
    SCAN_CARRY = "scan.carry"  # what a trip gives the next, and the last one gives back
    SCAN_YS = "scan.ys"  # a stack to which each trip adds one entry
    WHILE_CONST = "while.const"
    WHILE_INIT = "while.init"
    WHILE_CARRY = "while.carry"
    COND_OPERAND = "cond.operand"
    COND_RESULT = "cond.result"
    MANUAL_IN = "shard_map.in"  # an array and the shard of it that a device gets
    MANUAL_OUT = "shard_map.out"  # the shard that a device gives and the array
    RETURN = "return"  # a result may have another sharding than inside the function


CONSTS = (Tie.SCAN_CONST, Tie.WHILE_CONST)
INITS = (Tie.SCAN_INIT, Tie.WHILE_INIT)
CARRIES = (Tie.SCAN_CARRY, Tie.WHILE_CARRY)
LEAVES_TRIP = (*CARRIES, Tie.SCAN_YS)  # ties through which a value leaves one trip of a loop
MANUAL = (Tie.MANUAL_IN, Tie.MANUAL_OUT)
ENTRIES = (*CONSTS, *INITS, Tie.SCAN_XS, Tie.COND_OPERAND, Tie.MANUAL_IN)
EXITS = (*LEAVES_TRIP, Tie.COND_RESULT, Tie.MANUAL_OUT)
