"""Ties: how values around a loop or branch are joined to values of its bodies."""

from __future__ import annotations

from enum import Enum
from typing import Literal

# What a region is the body of.
Kind = Literal["function", "scan", "while_cond", "while", "cond", "shard_map"]


class Tie(Enum):
    """What a tie joins; its value is the name of the op in a printed program."""

    SCAN_CONST = "scan.const"  # the same in every round
    SCAN_INIT = "scan.init"  # what the first round gets
    SCAN_XS = "scan.xs"  # a stack of which each round gets one entry
    SCAN_CARRY = "scan.carry"  # what a round hands to the next, and the last one to the loop
    SCAN_YS = "scan.ys"  # a stack to which each round adds one entry
    WHILE_CONST = "while.const"
    WHILE_INIT = "while.init"
    WHILE_CARRY = "while.carry"
    COND_OPERAND = "cond.operand"
    COND_RESULT = "cond.result"
    MANUAL_IN = "shard_map.in"  # a whole array and the shard of it that a device gets
    MANUAL_OUT = "shard_map.out"  # the shard that a device gives and the whole array
    RETURN = "return"  # what the function hands back may be stored otherwise than used


CONSTS = (Tie.SCAN_CONST, Tie.WHILE_CONST)
INITS = (Tie.SCAN_INIT, Tie.WHILE_INIT)
CARRIES = (Tie.SCAN_CARRY, Tie.WHILE_CARRY)
LEAVES_ROUND = (*CARRIES, Tie.SCAN_YS)  # ties through which a value leaves one round of a loop
ENTRIES = (*CONSTS, *INITS, Tie.SCAN_XS, Tie.COND_OPERAND, Tie.MANUAL_IN)
EXITS = (*LEAVES_ROUND, Tie.COND_RESULT, Tie.MANUAL_OUT)
