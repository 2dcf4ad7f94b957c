"""Rows that move data: reshapes, slices, pads, concatenations, rolls, dynamic slices."""

from __future__ import annotations

from tests.fuzz.scope import NoOperand, Scope, row

ANY = "fib"


@row("transpose", 1.5)
def _transpose(s: Scope) -> str:
    x = s.pick(ANY, (2, 5))
    return f"jnp.transpose({x}, {tuple(int(d) for d in s.rng.permutation(len(x.shape)))})"


@row("merge", 2)
def _merge(s: Scope) -> str:
    x = s.pick(ANY, (2, 5))
    d = s.integer(0, len(x.shape) - 2)
    shape = (*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])
    return f"{x}.reshape({shape})"


@row("split", 2)
def _split(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    d = s.dim(x)
    heads = [h for h in (2, 3, 4, 5, 8) if x.shape[d] % h == 0 and x.shape[d]]
    if not heads:
        raise NoOperand
    h = s.one(*heads)
    return f"{x}.reshape({(*x.shape[:d], h, x.shape[d] // h, *x.shape[d + 1 :])})"


@row("flatten", 0.7)
def _flatten(s: Scope) -> str:
    return f"{s.pick(ANY, (2, 5))}.reshape(-1)"


@row("regroup", 0.7)
def _regroup(s: Scope) -> str:
    """[a, b] as [b, a]: no dim of one is a dim of the other."""
    x = s.pick(ANY, (2, 3))
    return f"{x}.reshape({x.shape[::-1]})"


@row("squeeze", 0.5)
def _squeeze(s: Scope) -> str:
    x = s.pick(ANY, (1, 5), lambda v: 1 in v.shape and v.size)
    return f"jnp.squeeze({x}, {x.shape.index(1)})"


@row("expand", 0.5)
def _expand(s: Scope) -> str:
    x = s.pick(ANY, (0, 3))
    return f"jnp.expand_dims({x}, {s.integer(0, len(x.shape))})"


@row("broadcast", 1)
def _broadcast(s: Scope) -> str:
    x = s.pick(ANY, (0, 3))
    return f"jnp.broadcast_to({x}, {(s.size(), *x.shape)})"


@row("slice", 3)
def _slice(s: Scope) -> str:
    """x[a:b:c] along one dim, x[:1] and x[-1:] more often than others."""
    x = s.pick(ANY, (1, 4))
    d = s.dim(x)
    n = x.shape[d]
    low, high = sorted((s.integer(0, n), s.integer(0, n)))
    stop = max(high, low + (0 if s.chance(0.03) else 1))
    part = s.one(":1", "-1:", "1:", ":-1", f"{low}:{stop}", f"{low}:{stop}:{s.integer(2, 3)}",
                 f"::{s.integer(2, 4)}", "::-1", f"{n // 2}")  # fmt: skip
    return f"{x}[{':, ' * d}{part}]"


@row("flip", 1)
def _flip(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    return f"jnp.flip({x}, {s.dim(x)})"


@row("roll", 1.5)
def _roll(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    return f"jnp.roll({x}, {s.one(1, -1, 2, 3)}, axis={s.dim(x)})"


@row("pad", 2)
def _pad(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    if s.chance(0.3):
        return f"jnp.pad({x}, 1)"
    config = [(0, 0, 0)] * len(x.shape)
    for _ in range(s.integer(1, 2)):
        interior = s.one(0, 0, 0, 1, 2)
        config[s.dim(x)] = (s.integer(-1, 3), s.integer(-1, 3), interior)
    zero = {"b": "False", "i": "0", "f": "0.5"}[x.kind]
    return f"lax.pad({x}, jnp.asarray({zero}, {x}.dtype), {config})"


@row("concatenate", 2.5)
def _concatenate(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    d = s.dim(x)
    y = s.like(x)
    parts = [str(x), str(y)]
    if s.chance(0.4):
        parts[1] = f"{y}[{':, ' * d}:{s.integer(1, max(1, x.shape[d]))}]"
    if s.chance(0.2):
        parts.append(str(x))
    s.rng.shuffle(parts)
    return f"jnp.concatenate([{', '.join(parts)}], axis={d})"


@row("stack", 0.7)
def _stack(s: Scope) -> str:
    x = s.pick(ANY, (0, 3))
    return f"jnp.stack([{x}, {s.like(x)}], axis={s.integer(0, len(x.shape))})"


@row("repeat", 0.5)
def _repeat(s: Scope) -> str:
    x = s.pick(ANY, (1, 3))
    return f"jnp.{s.one('repeat', 'repeat')}({x}, 2, axis={s.dim(x)})"


@row("tile", 0.4)
def _tile(s: Scope) -> str:
    x = s.pick(ANY, (1, 3))
    return f"jnp.tile({x}, {tuple(s.one(1, 1, 2) for _ in x.shape)})"


def _start(s: Scope, size: int) -> str:
    """A start index: a scalar argument, in range or not."""
    return s.indices((), size)


@row("dynamic_slice", 2.5)
def _dynamic_slice(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    d = s.dim(x)
    size = s.integer(1, x.shape[d])
    return f"lax.dynamic_slice_in_dim({x}, {_start(s, x.shape[d])}, {size}, axis={d})"


@row("dynamic_index", 1)
def _dynamic_index(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    d = s.dim(x)
    return f"lax.dynamic_index_in_dim({x}, {_start(s, x.shape[d])}, {d}, keepdims={s.chance(0.5)})"


@row("dynamic_update_slice", 2.5)
def _dynamic_update_slice(s: Scope) -> str:
    x = s.pick(ANY, (1, 4))
    d = s.dim(x)
    size = s.integer(1, x.shape[d])
    if s.chance(0.5):
        update = f"{s.like(x)}[{':, ' * d}:{size}]"
    else:
        update = str(s.argument((*x.shape[:d], size, *x.shape[d + 1 :]), x.dtype))
    return f"lax.dynamic_update_slice_in_dim({x}, {update}, {_start(s, x.shape[d])}, {d})"


@row("diagonal", 0.4)
def _diagonal(s: Scope) -> str:
    x = s.pick("f", (2, 3))
    return s.one(f"jnp.diagonal({x}, axis1=0, axis2=1)", f"jnp.tril({x})", f"jnp.triu({x}, 1)")


@row("split_sections", 0.6)
def _split_sections(s: Scope) -> str:
    x = s.pick("f", (1, 3), lambda v: any(n % 2 == 0 and n for n in v.shape))
    d = s.one(*[i for i, n in enumerate(x.shape) if n % 2 == 0 and n])
    return f"jnp.split({x}, 2, axis={d})"
