"""What is asked of one case: planning, running, numbers, bytes, memory, proofs, files.

The judge is XLA, and the plain function on one device. Each question that is answered badly is a
finding; the measured bytes are kept for all cases, because some may be off in a few of them.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shardwright as sw
from shardwright.binding import Bound
from shardwright.cost.model import CostModel
from shardwright.mesh import Mesh
from shardwright.plan import Plan
from shardwright.record.build import build_record
from shardwright.record.types import Asked
from shardwright.referee.compiled import read_collectives, read_memory, totals
from shardwright.referee.verify import peak_bytes
from shardwright.search.axis_placements import TooLarge, find_axis_placements
from shardwright.search.exact import Certificate
from shardwright.search.search import Found
from shardwright.search.space import Space
from shardwright.spmd.decisions import Decisions, State, decide, decide_all
from shardwright.zoo.example import QUICK
from tests.cost.walk import walk_cost
from tests.fuzz.generator import FOUND, RANDOM, Case
from tests.fuzz.numbers import fails_alone, jax_refuses, wrong_numbers
from tests.plans.runs import DEVICES

SECONDS = 0.3  # of search
MOVED_BYTES, BYTES_OFF = 8 << 10, 0.25  # bytes are compared above 8 kB
PEAK_BYTES, PEAK_LOW = 256, 0.25  # peaks are compared unless a few scalars decide
RANDOM_STATES, MOST_STATES = 64, 4000  # tried against a proof; enumerated

# Kinds of findings that may occur in a few cases; the others never.
TOLERATED = frozenset(
    ("bytes", "memory", "refused pin", "sensitive", "sign of zero", "one device", "no program")
)


@dataclass
class Verdict:
    """What was found about a case."""

    seed: int
    how: str = FOUND
    findings: list[tuple[str, str]] = field(default_factory=list)  # (kind, what was seen)
    predicted_bytes: float = 0.0  # on links
    compiled_bytes: float = 0.0
    predicted_peak: int = 0
    compiled_peak: int = 0
    judged: bool = False  # whether bytes and peak can be compared on a host
    certificate: str = ""
    split: bool = False  # whether the plan splits anything

    case: dict[str, Any] | None = None  # where something was found

    def add(self, kind: str, text: str) -> None:
        self.findings.append((kind, text))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.findings]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(case: Case, *, proofs: bool = True, files: bool = True) -> Verdict:
    """The verdict on a case; `proofs` and `files` say which of the slower questions are asked."""
    with case.settings():
        return _judge(case, proofs, files)


def _judge(case: Case, proofs: bool, files: bool) -> Verdict:
    verdict = Verdict(case.seed, case.how)
    fn, inputs = case.function(), case.inputs()
    try:
        plan = make_plan(case, fn)
    except sw.ShardwrightError as error:
        is_pin = str(error).startswith("cannot split dim")  # a part of a dim that is reshaped
        kind = "refused pin" if is_pin and case.pins else "refused"
        said = jax_refuses(fn, case)
        verdict.add("no program" if said else kind, said or str(error))
        return verdict
    except Exception:
        verdict.add("plan crash", _trace())
        return verdict
    verdict.certificate = plan.certificate.kind
    verdict.split = any(plan.decisions.values())
    if proofs and case.how == FOUND:
        _judge_proof(verdict, case, plan)
    if files:
        _judge_file(verdict, case, fn, plan)
        _judge_folding(verdict, plan)
    try:
        planned = plan.jit(fn)
        compiled = planned.lower(*inputs).compile(QUICK)
        _judge_bytes(verdict, plan, compiled)
        # JAX refuses int4 arguments on several devices for what was compiled ahead of time.
        run = planned if any("int4" in a.dtype for a in case.arguments) else compiled
        results = jax.tree.leaves(run(*_tuple(plan.place(*inputs), inputs)))
    except Exception as error:
        said = _trace()
        if refusal := jax_refuses(fn, case):
            verdict.add("no program", refusal)
        else:
            alone = fails_alone(fn, case, str(error))
            verdict.add("one device" if alone else "run crash", said)
        return verdict
    findings = wrong_numbers(case, fn, [np.asarray(x) for x in results])
    if any(kind == "numbers" for kind, _ in findings) and _right_when_wide(case, plan):
        findings = [("sensitive" if k == "numbers" else k, text) for k, text in findings]
    verdict.findings += findings
    return verdict


def _right_when_wide(case: Case, plan: Plan) -> bool:
    """Whether only floats round otherwise: with wider ones the same decisions are right.

    Sums of many floats that nearly cancel are off by more than one ulp of the inputs shows, as are
    sines of large sums; on one device sums of narrow floats may stop growing where each device's
    part does not.
    """
    return any(_right_as(wide, plan) for wide in case.widened())


def _right_as(case: Case, plan: Plan) -> bool:
    """Whether the decisions of a plan are right for the same program with other floats."""
    with case.settings():
        fn, decisions = case.function(), plan._require("judging").decisions
        same = plan_of(fn, _model(case, fn), decisions, case.donated)
        if str(same.decisions) != str(plan.decisions):  # groups are numbered in another order
            return False
        inputs = case.inputs()
        results = jax.tree.leaves(same.jit(fn)(*_tuple(same.place(*inputs), inputs)))
        findings = wrong_numbers(case, fn, [np.asarray(x) for x in results])
    return TOLERATED.issuperset(kind for kind, _ in findings)


def _tuple(placed: Any, inputs: list[Any]) -> tuple[Any, ...]:
    return (placed,) if len(inputs) == 1 else tuple(placed)


def _trace() -> str:
    """What was raised, and the last lines of the way there."""
    error = sys.exc_info()[1]
    frames = traceback.extract_tb(error.__traceback__ if error else None)[-6:]
    where = [f"  {f.filename.split('/')[-1]}:{f.lineno} {f.line}" for f in frames]
    return "\n".join([f"{type(error).__name__}: {error!s:.600}", *where])


# Planning ---------------------------------------------------------------------------------------


def make_plan(case: Case, fn: Any) -> Plan:
    """The plan of a case: found, found under pins, or of a random state."""
    types = case.types()
    device = DEVICES.get(case.device, case.device)
    tactics = [sw.Pin(*pin) for pin in case.pins] or None
    if case.how != RANDOM:
        return sw.partition(
            fn, *types, mesh=case.mesh, device=device, tactics=tactics, seconds=SECONDS,
            donate_argnums=case.donated,
        )  # fmt: skip
    model = _model(case, fn)
    state = random_state(Space(model), np.random.default_rng(case.seed))
    return plan_of(fn, model, decide(state), case.donated)


def _model(case: Case, fn: Any) -> CostModel:
    device = DEVICES.get(case.device, case.device)
    analysis = sw.analyze(fn, *case.types(), donate_argnums=case.donated)
    return CostModel(
        analysis, Mesh(case.mesh), sw.devices()[device] if isinstance(device, str) else device
    )


def random_state(space: Space, rng: np.random.Generator) -> State:
    """A few legal appends."""
    state = space.root
    for _ in range(int(rng.integers(1, 2 + 2 * len(space.axes)))):
        legal = space.legal(state)
        if not legal:
            break
        state = space.after(state, int(rng.choice(legal)))
    return state


def plan_of(fn: Any, model: CostModel, decisions: Decisions, donated: tuple[int, ...]) -> Plan:
    """A plan that nobody searched for."""
    found = Found(decisions, model.cost(decisions), Certificate.none(), {}, 0, ("random",))
    record = build_record(model, found, asked=Asked(donate_argnums=donated))
    return Plan(record, Bound(fn, model.analysis.program, model, decisions))


# Bytes ------------------------------------------------------------------------------------------


def _judge_bytes(verdict: Verdict, plan: Plan, compiled: Any) -> None:
    """Predicted against compiled bytes, on links and at the peak.

    The peak is predicted for the compiler that is asked, as `verify` does: plans are made for GPUs,
    which do not hold what XLA:CPU does. That computes narrow floats as f32, so that programs with
    them have other bytes there; and of a loop without a known length nobody knows how often it
    moves something.
    """
    bound = plan._require("judging")
    verdict.judged = not any(is_narrow(v.dtype) for v in bound.program.values)
    rows = read_collectives(compiled.as_text(), plan.mesh.shape)
    verdict.judged &= all(row.count_known for row in rows)
    found = totals(rows)
    guess = totals(plan.collectives)
    verdict.predicted_bytes, verdict.compiled_bytes = (
        float(sum(b for _, b in rows.values())) for rows in (guess, found)
    )
    verdict.predicted_peak = peak_bytes(plan, "cpu")
    verdict.compiled_peak = read_memory(compiled).peak_bytes
    if bytes_off(verdict):
        keys = sorted({*guess, *found}, key=str)
        lines = [
            f"{kind} {axes}: {guess.get((kind, axes), (0, 0))} {found.get((kind, axes), (0, 0))}"
            for kind, axes in keys
        ]
        verdict.add("bytes", "(count, bytes) predicted, compiled\n" + "\n".join(lines))
    if peak_low(verdict):
        verdict.add(
            "memory", f"peak predicted {verdict.predicted_peak}, compiled {verdict.compiled_peak}"
        )


def is_narrow(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, np.floating) and jnp.dtype(dtype).itemsize < 4


def moves(verdict: Verdict) -> bool:
    """Whether a case moves enough for its bytes to be compared."""
    return verdict.judged and max(verdict.predicted_bytes, verdict.compiled_bytes) > MOVED_BYTES


def bytes_off(verdict: Verdict) -> bool:
    top = max(verdict.predicted_bytes, verdict.compiled_bytes)
    off = abs(verdict.predicted_bytes - verdict.compiled_bytes)
    return moves(verdict) and off > BYTES_OFF * top


def holds(verdict: Verdict, least: int = PEAK_BYTES) -> bool:
    """Whether a case holds enough for its peak to be compared."""
    return verdict.judged and verdict.compiled_peak > least


def peak_low(verdict: Verdict) -> bool:
    return holds(verdict) and verdict.predicted_peak < (1 - PEAK_LOW) * verdict.compiled_peak


# Folding, proofs and files ----------------------------------------------------------------------


def _judge_folding(verdict: Verdict, plan: Plan) -> None:
    """The folded cost is that of a walk over every op, value and point of the program."""
    bound = plan._require("judging")
    folded, walked = bound.model.cost(bound.decisions), walk_cost(bound.model, bound.decisions)
    seconds = np.isclose(folded.compute_s, walked.compute_s, 1e-9, 1e-18)
    seconds &= np.isclose(folded.link_s, walked.link_s, 1e-9, 1e-18)
    if not seconds or folded.peak_bytes != walked.peak_bytes:
        verdict.add("folding", f"{folded}\n{walked}")


def _judge_proof(verdict: Verdict, case: Case, plan: Plan) -> None:
    """No state that fits is faster than what is proven to be optimal, or than a lower bound."""
    proof, step_s = plan.certificate, plan.cost.step_s
    for name, row in plan.baselines.items():
        fits = not isinstance(row, str) and row.peak_bytes <= plan.device.usable_bytes
        if fits and row.step_s < step_s * (1 - 1e-9):
            verdict.add("worse than named", f"{name}: {row.step_s} < {step_s}")
    if proof.kind == "none":
        return
    model = plan._require("judging").model
    space = Space(model)
    rng = np.random.default_rng(case.seed)
    states = [space.root, *(random_state(space, rng) for _ in range(RANDOM_STATES))]
    states += every_state(space)
    costs = [
        model.evaluate(decide_all(states[n : n + 512], {})) for n in range(0, len(states), 512)
    ]
    seconds = np.concatenate([c.step_s for c in costs])
    peaks = np.concatenate([c.peak_bytes for c in costs])
    seconds = np.where(peaks <= plan.device.usable_bytes, seconds, np.inf)
    best = int(np.argmin(seconds))
    bound = step_s if proof.kind == "optimal" else proof.lower_bound_s
    if seconds[best] < bound * (1 - 1e-7):
        verdict.add("false proof", f"{proof}: {states[best]} takes {seconds[best]}, not {bound}")


def every_state(space: Space) -> list[State]:
    """All states of a small space; none of a large one."""
    from itertools import product

    try:
        axes = find_axis_placements(space, MOST_STATES)
    except TooLarge:
        return []
    if np.prod([float(len(a)) for a in axes]) > MOST_STATES:
        return []
    return list(product(*[map(a.list_of, range(len(a))) for a in axes]))


def _judge_file(verdict: Verdict, case: Case, fn: Any, plan: Plan) -> None:
    """A plan is the same after it was written and read, and when it is made again."""
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            path = Path(folder, "plan.json")
            plan.save(path)
            again = sw.load(path).bind(case.function(), *case.types())
        if again.specs() != plan.specs() or again.result_specs() != plan.result_specs():
            verdict.add("file", "other specs after save and load")
        if repr(again._require("judging").steps) != repr(plan._require("judging").steps):
            verdict.add("file", "other steps after save and load")
        text = str(make_plan(case, case.function()).decisions)
        if text != str(plan.decisions):
            verdict.add("not repeatable", f"{plan.decisions}\n{text}")
        str(plan), plan.explain(), plan.to_html(), plan.to_python(), str(plan.ir())
    except Exception:
        verdict.add("file crash", _trace())
