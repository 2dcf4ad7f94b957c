"""XLA judges every factor of every example: what a rule claims is what the compiler does.

pass          no collective
a reduction   exactly one all-reduce of that kind, the result then whole
permutation   neighbours exchange at most what they hold; no all-gather
replication   splitting it costs communication (or does not compile)
and the numbers are those of the unsharded op.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.rules import lookup
from shardwright.rules.examples import EXAMPLES, Example
from shardwright.rules.rule import factor_name
from tests.rules import rule_referee
from tests.rules.isolated import isolate
from tests.rules.rule_referee import examine

pytestmark = pytest.mark.slow  # in all

LOOP = "iterates until every element has converged: a one-element all-reduce per step"
_LIBRARY = "XLA:CPU calls a library, which has no partitioner; the TPU compiler keeps it local"
_GROUPS = "XLA:CPU rewrites grouped convolutions before it partitions; the TPU compiler does not"
_WHICH_ROWS = "XLA does not know which rows a group has; plans run grouped dots in shard_map"
NO_SHARDY = "XLA's importer does not know mulhi: no program with it compiles for several devices"

# {(example, factors): why XLA and the rule differ}; an entry that no longer differs fails.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("ragged_dot_general f32[8,4] f32[3,4,6] grouped rows", "k"): _WHICH_ROWS,
    ("ragged_dot_general f32[8,4] f32[8,6] grouped sums", "m"): _WHICH_ROWS,
    ("igamma f32[4,8] f32[4,8]", "i j"): LOOP,
    ("igammac f32[4,8] f32[4,8]", "i j"): LOOP,
    ("igamma_grad_a f32[4,8] f32[4,8]", "i j"): LOOP,
    ("regularized_incomplete_beta f32[4,8] f32[4,8] f32[4,8]", "i j"): LOOP,
    ("random_gamma key[] f32[4,8]", "i"): LOOP,
    ("mulhi i32[4,8] i32[4,8]", "i j"): NO_SHARDY,
    ("philox2x32 u32[4] u32[4] u32[4]", "i"): NO_SHARDY,
    ("philox4x32 u32[4] u32[4] u32[4] u32[4] u32[4] u32[4]", "i"): NO_SHARDY,
    ("conv_general_dilated f32[4,8,8,6] f32[3,3,3,8] two groups", "i j k l"): _GROUPS,
    ("scatter f32[4,8] f32[4] one column", "j"): (
        "XLA:CPU masks a single update; the TPU compiler gathers the operand"
    ),
    ("slice f32[4,8] one entry", "i"): (
        "XLA first moves the entry to the first part (one collective-permute), then sums"
    ),
    ("concatenate f32[4,7] f32[4,1] one more entry", "j"): "7 entries never divide evenly",
    ("top_k f32[4,8]", "i"): _LIBRARY,
    ("triangular_solve f32[4,6,6] f32[4,6,2] left", "l"): _LIBRARY,
    ("triangular_solve f32[4,6,6] f32[4,2,6] right", "l"): _LIBRARY,
    ("fft c64[4,8]", "i"): _LIBRARY,
    ("fft f32[4,8,8] real, two dims", "i"): _LIBRARY,
    ("layout_constraint f32[4,8]", "i j"): _LIBRARY,
    ("custom_partitioning f32[4,8] f32[4] with a Shardy rule", "j"): (
        "XLA runs the user's partition function, which does not look"
    ),
    ("rng_uniform f32[] f32[]", "i j"): "every call draws other numbers; no collective",
}
_DIFFERING = {title: (letters, why) for (title, letters), why in EXCEPTIONS.items()}

# Need-replication factors that must not even be tried: XLA aborts the process.
ABORTS = {"conv_general_dilated f32[4,8,8,6] f32[3,3,6,8] batch groups": "j p"}

# Examples that cannot be compiled alone.
NOT_COMPILED = {
    "sharding_constraint f32[4,8] unsharded": "it names devices of its own",
    "platform_index f32[4]": "a scalar without operands",
}


@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if e.title not in NOT_COMPILED], ids=lambda e: e.title
)
def test_xla_does_what_the_rule_claims(example: Example) -> None:
    skip = ABORTS.get(example.title, "")
    found = {name: text for name, text in examine(example, skip=skip).items() if text}
    allowed, _ = _DIFFERING.get(example.title, ("", ""))
    assert set(found) == set(allowed.split()), f"{example.rule}\n{found}"


# {example: (a kind that is not true, of which factor, what the referee must find)}
LIES = {
    "cumsum f32[4,8]": ("pass", "j", "all-gather"),
    "reduce_sum f32[4,8]": ("max", "j", "all-reduce:add"),
    "reduce_max f32[4,8]": ("add", "j", "all-reduce:max"),
    "rev f32[4,8]": ("pass", "j", "collective-permute"),
    "tanh f32[4,8]": ("replicate", "i", "no collective"),
    "dynamic_slice f32[16,6] i32[]": ("permute", "i", "all-gather"),
}


@pytest.mark.parametrize("title", LIES)
def test_the_referee_catches_a_lie(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = (e for e in EXAMPLES if e.title == title)
    said, factor, found = LIES[title]
    true = lookup(isolate(example).op)
    kinds = [said if factor_name(f) == factor else kind for f, kind in enumerate(true.kinds)]
    monkeypatch.setattr(rule_referee, "lookup", lambda op: replace(true, kinds=tuple(kinds)))
    assert found in rule_referee.examine(example)[factor]


def test_exceptions_name_examples() -> None:
    titles = {example.title for example in EXAMPLES}
    assert {*_DIFFERING, *NOT_COMPILED} <= titles
