"""Shardwright's whole idea on one page: rules, colors, lists, claims, costs, search, lowering.

    python examples/tiny.py

Plans one step of a two-layer MLP for 8 devices and runs it. Everything that makes the real thing
large is left out: other ops, loops, memory, conflicts that need a bit, fusion, proofs.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from collections import Counter
from dataclasses import dataclass
from itertools import permutations, product
from math import prod

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal
from jax.sharding import AxisType, NamedSharding, PartitionSpec

MESH = {"data": 4, "model": 2}
FLOP_PER_S, LINK_BYTES_PER_S, LATENCY_S = 1e14, 4.5e10, 1e-6
ELEMENTWISE = {"add", "sub", "mul", "tanh", "neg", "integer_pow", "add_any", "square"}


# 1. Rules: an op is an einsum over factors. Letters that an operand has and the result has not
#    are summed: splitting one leaves a partial sum on each device.
@dataclass(frozen=True)
class Op:
    eqn: JaxprEqn
    values: tuple  # operands that have dims, then the result
    factors: tuple[str, ...]  # a letter per dim of each of them

    @property
    def sizes(self):
        rows = zip(self.values, self.factors, strict=True)
        return {f: n for v, fs in rows for f, n in zip(fs, v.aval.shape, strict=True)}

    @property
    def flops(self):
        return 2 * prod(self.sizes.values()) if self.eqn.primitive.name == "dot_general" else 0


def rule(eqn):
    """The op with its factors."""
    name, params, out = eqn.primitive.name, eqn.params, eqn.outvars[0]
    result, operands = "abcdef"[: out.aval.ndim], [v for v in eqn.invars if v.aval.ndim]
    factors = [result] * len(operands)
    if name == "dot_general":
        ((l,), (r,)), (batch, _) = params["dimension_numbers"]
        assert not batch and out.aval.ndim == 2, "tiny: products of two matrices only"
        factors = ["za" if l == 0 else "az", "zb" if r == 0 else "bz"]
    elif name == "transpose":
        factors = ["".join(sorted(result, key=lambda f: params["permutation"]["ab".index(f)]))]
    elif name == "reduce_sum":
        kept = iter(result)
        dims = range(operands[0].aval.ndim)
        factors = ["".join("yz"[d] if d in params["axes"] else next(kept) for d in dims)]
    elif name == "broadcast_in_dim":
        factors = ["".join(result[d] for d in params["broadcast_dimensions"])] * len(operands)
    else:
        assert name in ELEMENTWISE, f"tiny has no rule for {name}"
    return Op(eqn, (*operands, out), (*factors, result))


# 2. Colors: dims of values and factors of ops that meet are one. Splitting a color over an axis
#    costs no reshard, so a color is what gets decided.
def find_colors(ops):
    """{(value, dim): color}"""
    parent = {}

    def find(x):
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    for i, op in enumerate(ops):
        for v, factors in zip(op.values, op.factors, strict=True):
            for d, f in enumerate(factors):
                parent[find((v, d))] = find((i, f))
    return {x: find(x) for x in list(parent)}


# 3. Claims: per mesh axis an ordered list of colors. A value gives the axis to the first listed
#    color that it has: that is how it is stored.
def claim(value, lists, colors):
    """{axis: dim} of a value."""
    placement = {}
    for axis, listed in lists.items():
        for color in listed:
            dims = [d for d in range(value.aval.ndim) if colors[value, d] == color]
            fitting = [d for d in dims if value.aval.shape[d] % parts(placement, d, axis) == 0]
            if fitting:
                placement[axis] = fitting[0]
                break
    return placement


def parts(placement, where, axis):
    """In how many parts a dim or factor is, once it is split over this axis too."""
    return prod(MESH[a] for a, split in placement.items() if split == where) * MESH[axis]


# 4. Ops follow: each gives each axis to the factor, or to none, that is cheapest in compute plus
#    data movement. Where stored and computed differ, data moves.
def move(nbytes, axis, have, want, partial):
    """(collective, seconds) that brings a value from being split along one dim to another."""
    n = MESH[axis]
    ring_s = LATENCY_S + nbytes * (n - 1) / n / LINK_BYTES_PER_S
    if partial:
        return ("all-reduce", 2 * ring_s) if want is None else ("reduce-scatter", ring_s)
    if have is None or have == want:
        return "", 0.0  # a local slice, or already there
    return ("all-gather", ring_s) if want is None else ("all-to-all", ring_s / n)


def follow(op, stored):
    """(seconds, collectives) of an op whose values are stored so."""
    chosen, link_s, moved, flops = {}, 0.0, [], op.flops
    for axis, n in MESH.items():
        options = []
        for factor in (*op.sizes, None):
            if factor and op.sizes[factor] % parts(chosen, factor, axis):
                continue
            seconds, moves = 0.0, []
            for v, factors in zip(op.values, op.factors, strict=True):
                have = stored[v].get(axis)
                used = factors.index(factor) if factor and factor in factors else None
                nbytes = v.aval.size * v.aval.dtype.itemsize
                nbytes //= prod(MESH[a] for a in stored[v] if a != axis)
                if v is op.values[-1]:  # the result: from how it is made to how it is stored
                    made_partial = factor is not None and used is None
                    kind, s = move(nbytes, axis, used, have, made_partial)
                else:
                    kind, s = move(nbytes, axis, have, used, False)
                seconds += s
                moves += [f"{kind} over {axis}: {v.aval.str_short()}"] if kind else []
            compute_s = flops / (n if factor else 1) / FLOP_PER_S
            options.append((compute_s + seconds, factor, seconds, moves))
        _, chosen[axis], seconds, moves = min(options, key=lambda option: option[0])
        flops /= n if chosen[axis] else 1
        link_s, moved = link_s + seconds, moved + moves
    return flops / FLOP_PER_S + link_s, moved


def evaluate(ops, lists, colors):
    """(seconds, collectives) of a step."""
    stored = {v: claim(v, lists, colors) for op in ops for v in op.values}
    rows = [follow(op, stored) for op in ops]
    return sum(seconds for seconds, _ in rows), [m for _, moved in rows for m in moved]


# 5. Search: here every pair of lists of at most two colors. The real search proves the optimum of
#    spaces with millions of states.
def search(ops, colors):
    """(seconds, collectives, lists) of the best lists."""
    distinct = list(dict.fromkeys(colors.values()))
    lists = [l for n in range(3) for l in permutations(distinct, n)]
    states = (dict(zip(MESH, pair, strict=True)) for pair in product(lists, lists))
    return min(((*evaluate(ops, s, colors), s) for s in states), key=lambda row: row[0])


# 6. Lowering: the function again, op by op, each value pinned as it is stored.
def lower(closed, lists, colors):
    """The program as a jitted function on a real mesh."""
    axis_types = (AxisType.Auto,) * len(MESH)
    mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=axis_types)

    def pin(v, x):
        dims = [[] for _ in v.aval.shape]
        for axis, d in claim(v, lists, colors).items():
            dims[d].append(axis)
        spec = PartitionSpec(*(tuple(axes) or None for axes in dims))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def planned(*args):
        env = {v: pin(v, x) for v, x in zip(closed.jaxpr.invars, args, strict=True)}
        for eqn in closed.eqns:
            operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
            out = eqn.outvars[0]
            env[out] = pin(out, eqn.primitive.bind(*operands, **eqn.params))
        return [env[v] for v in closed.jaxpr.outvars]

    return jax.jit(planned)


def train_step(w1, w2, x, y):
    """One step of gradient descent on a two-layer MLP."""

    def loss(w1, w2):
        return jnp.sum((jnp.tanh(x @ w1) @ w2 - y) ** 2)

    g1, g2 = jax.grad(loss, argnums=(0, 1))(w1, w2)
    return w1 - 1e-6 * g1, w2 - 1e-6 * g2


def main(batch, width=512, hidden=2048):
    """Plans and runs a step; prints what was decided."""
    shapes = [(width, hidden), (hidden, width), (batch, width), (batch, width)]
    keys = jax.random.split(jax.random.key(0), 4)
    args = [0.02 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]
    closed = jax.make_jaxpr(train_step)(*args)
    ops = [rule(eqn) for eqn in closed.eqns]
    colors = find_colors(ops)
    names = {}
    for name, v in zip(("w1", "w2", "x", "y"), closed.jaxpr.invars, strict=True):
        for d in range(2):
            names.setdefault(colors[v, d], f"{name}[{d}]")
    print(f"batch {batch}: {len(ops)} ops, {len(names)} colors: {', '.join(names.values())}")
    seconds, moved, lists = search(ops, colors)
    for axis, listed in lists.items():
        print(f"  {axis:6} {', '.join(names[color] for color in listed) or 'nothing'}")
    alone, _ = evaluate(ops, dict.fromkeys(MESH, ()), colors)
    print(f"  {seconds * 1e6:.0f} us a step, {alone * 1e6:.0f} us if nothing is split")
    for line, count in Counter(moved).items():
        print(f"  {count} x {line}")
    ours, theirs = lower(closed, lists, colors)(*args), train_step(*args)
    equal = all(jnp.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
    print(f"  w1 is {ours[0].sharding.spec}; the numbers {'are equal' if equal else 'DIFFER'}")


if __name__ == "__main__":
    main(batch=1024)  # few examples: the weights stay, activations move (tensor parallel)
    main(batch=8192)  # many: activations stay, the weights' gradients move (data parallel)
