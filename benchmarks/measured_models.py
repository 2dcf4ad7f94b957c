"""Train steps written as the codebases have them whose step times were published.

One decoder with the choices in which MaxText, LLM Foundry, TorchTitan, JAX Toolbox and Megatron
Bridge differ: sequential or parallel blocks, gated MLP or not, experts, tied embeddings, which
results a rematerialised layer keeps, in which dtype gradients are reduced. Layers are scanned.

Dims: B batch, S sequence, D model, H query heads, N key/value heads, K head, F hidden,
V vocabulary, E experts, C slots of one expert for one sequence.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from benchmarks import measured_eager as eager
from benchmarks.measured_attention import flash_attention, splash_attention
from shardwright.zoo.example import Example
from shardwright.zoo.parameters import dense, draw, ones, stacked
from shardwright.zoo.training import adamw, cross_entropy, first_state, make_train_step


class Remat(NamedTuple):
    """Which results of a layer the backward pass finds; it computes the others again."""

    saved: tuple[str, ...] | None = ()  # None: all, nothing is rematerialised
    offloaded: tuple[str, ...] = ()  # kept in the host's memory


QKV = ("q", "k", "v")
DOTS = (*QKV, "out", "gate", "up", "down")  # results of dots with weights
# The published policies by name, MaxText's and TorchTitan's.
KEEPS: dict[str, Remat] = {
    "none": Remat(None),
    "full": Remat(),
    "minimal": Remat(DOTS),
    "minimal_flash": Remat((*DOTS, "context")),
    # MaxText's custom policy of the v6e recipes.
    "projections": Remat((), ("input", *QKV, "out")),
    # TorchTitan's selective policy per op: attention, and every second of wq wk wv wo w1 w3 w2.
    "every second dot": Remat(("q", "v", "context", "gate", "down")),
    "save_qkv_proj": Remat(QKV),
    "save_out_proj": Remat(("out",)),
    "save_dot_except_mlp": Remat((*QKV, "out")),
    "save_dot_except_mlpwi": Remat((*QKV, "out", "down")),
    "save_dot_with_context_except_mlp": Remat((*QKV, "context", "out")),
    "qkv_proj_offloaded": Remat((), QKV),
    "minimal_offloaded": Remat((), DOTS),
}
# The dtypes of dots with weights, where a row says that they are narrower than bf16.
NARROW = {"f8": (jnp.float8_e4m3fn, jnp.float8_e5m2), "s8": (jnp.int8, jnp.int8)}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape and style of a published model and of its batch."""

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    d_head: int
    d_ff: int
    vocab: int
    seq: int
    batch: int
    tied: bool
    gated: bool
    parallel: bool = False  # attention and MLP read the same norm and are added
    rotary: bool = True
    fused_qkv: bool = False
    experts: int = 0
    top_k: int = 0
    keeps: Remat = KEEPS["none"]
    eager: bool = False  # norms and activations are kernels of their own, nothing is fused
    reduce_f32: bool = False  # gradients of weights are summed over devices in f32
    narrow: str = ""  # a key of NARROW: in what layers multiply; else bf16
    one_hot: bool = False  # the loss weighs all log-probabilities, as MaxText's; else it picks one
    splash_block: int = 0  # of the TPU kernel of attention; 0: flash attention of GPUs
    fused_backward: bool = False  # of the TPU kernel

    @property
    def parameters(self) -> int:
        """The number of parameters, norms left out."""
        return self._parameters(max(self.experts, 1))

    @property
    def flops(self) -> float:
        """FLOP of a step that a model needs, without what is rematerialised; attention causal."""
        tokens = self.batch * self.seq
        attention = self.layers * self.heads * self.d_head * self.seq / 2
        embedding = 0 if self.tied else self.vocab * self.d_model  # a lookup
        return 6.0 * tokens * (self._parameters(max(self.top_k, 1)) - embedding + 2 * attention)

    def _parameters(self, experts: int) -> int:
        d, f = self.d_model, self.d_ff
        attention = d * self.d_head * 2 * (self.heads + self.kv_heads)
        mlp = (3 if self.gated else 2) * d * f * experts + d * self.experts
        return self.layers * (attention + mlp) + self.vocab * d * (1 if self.tied else 2)


def train_step(config: Config, name: str) -> Example:
    """One AdamW step on f32 weights, computed in bf16."""
    optimizer = adamw()
    step = make_train_step(functools.partial(_loss, config), optimizer)

    def make(key: jax.Array) -> tuple[Any, Any]:
        tokens = jnp.zeros((config.batch, config.seq), jnp.int32)
        state = first_state(draw(_weights(config), key), optimizer)
        return state, {"tokens": tokens, "targets": tokens}

    return Example(name=name, fn=step, make=make, donate_argnums=(0,))


def _weights(config: Config) -> dict[str, Any]:
    d, f, k, e = config.d_model, config.d_ff, config.d_head, config.experts
    layer = {"norm1": ones(d), "wo": dense(config.heads, k, d)}
    if config.fused_qkv:
        layer["wqkv"] = dense(d, 3, config.heads, k)
    else:
        layer["wq"] = dense(d, config.heads, k)
        layer |= {name: dense(d, config.kv_heads, k) for name in ("wk", "wv")}
    expert = (e,) if e else ()
    layer |= {"w1": dense(*expert, d, f), "w2": dense(*expert, f, d)}
    layer |= {"w3": dense(*expert, d, f)} if config.gated else {}
    layer |= {"router": dense(d, e)} if e else {}
    layer |= {} if config.parallel else {"norm2": ones(d)}
    tree = {
        "embedding": dense(config.vocab, d),
        "layers": stacked(layer, config.layers),
        "final_norm": ones(d),
    }
    return tree if config.tied else tree | {"unembedding": dense(d, config.vocab)}


def _loss(config: Config, params: Any, batch: Any) -> jax.Array:
    """The mean cross-entropy of the next token."""
    x = params["embedding"][batch["tokens"]].astype(jnp.bfloat16)
    block = functools.partial(_block, config)
    saved, offloaded = config.keeps
    if saved is not None:
        policy = jax.checkpoint_policies.save_only_these_names(*saved)
        if offloaded:
            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=list(saved),
                names_which_can_be_offloaded=list(offloaded),
                offload_src="device", offload_dst="pinned_host",
            )  # fmt: skip
        block = jax.checkpoint(block, policy=policy, prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, layer: (block(layer, x), None), x, params["layers"])
    x = _norm(config, x, params["final_norm"])
    dot = functools.partial(_dot, replace(config, narrow=""))
    if config.tied:
        logits = dot("bsd,vd->bsv", x, params["embedding"])
    else:
        logits = dot("bsd,dv->bsv", x, params["unembedding"])
    loss = _one_hot_cross_entropy if config.one_hot else cross_entropy
    return loss(logits.astype(jnp.float32), batch["targets"])


def _one_hot_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The same number as `cross_entropy`, without a gather, whose gradient is a scatter."""
    chosen = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(chosen * jax.nn.log_softmax(logits), axis=-1))


def _block(config: Config, layer: Any, x: jax.Array) -> jax.Array:
    """One layer on the residual stream x [B, S, D]."""
    dot = functools.partial(_dot, config)
    x = checkpoint_name(x, "input")
    normed = _norm(config, x, layer["norm1"])
    if config.fused_qkv:
        q, k, v = jnp.moveaxis(dot("bsd,dchk->bschk", normed, layer["wqkv"]), 2, 0)
    else:
        q = dot("bsd,dhk->bshk", normed, layer["wq"])
        k = dot("bsd,dnk->bsnk", normed, layer["wk"])
        v = dot("bsd,dnk->bsnk", normed, layer["wv"])
    q, k, v = (checkpoint_name(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    if config.rotary:
        rotate = eager.through_f32 if config.eager else _rotate
        q, k = rotate(q), rotate(k)
    if config.splash_block:
        context = splash_attention(
            q, k, v, block=config.splash_block, fused_backward=config.fused_backward
        )
    else:
        context = flash_attention(q, k, v)
    context = checkpoint_name(context, "context")
    attended = checkpoint_name(dot("bshk,hkd->bsd", context, layer["wo"]), "out")
    mlp = _experts if config.experts else _feed_forward
    if config.parallel:
        return x + attended + mlp(config, layer, normed)
    x = x + attended
    return x + mlp(config, layer, _norm(config, x, layer["norm2"]))


def _feed_forward(config: Config, layer: Any, x: jax.Array) -> jax.Array:
    """The MLP on [B, S, D]."""
    dot = functools.partial(_dot, config)
    hidden = checkpoint_name(dot("bsd,df->bsf", x, layer["w1"]), "gate")
    if config.gated:
        up = checkpoint_name(dot("bsd,df->bsf", x, layer["w3"]), "up")
        hidden = _gate(config, hidden, up)
    elif config.eager:
        hidden = eager.unary(hidden)
    else:
        hidden = jax.nn.relu(hidden) if config.parallel else jax.nn.gelu(hidden)
    return checkpoint_name(dot("bsf,fd->bsd", hidden, layer["w2"]), "down")


def _experts(config: Config, layer: Any, x: jax.Array) -> jax.Array:
    """A dropless mixture with balanced experts on [B, S, D].

    Every sequence sends top_k S / E tokens to each expert, so the buffers [B, E, C, D] that go to
    the experts and back have no empty slots.
    """
    b, s, _ = x.shape
    e, k = config.experts, config.top_k
    dot = functools.partial(_dot, config)
    routed = _dot(replace(config, narrow=""), "bsd,de->bse", x, layer["router"])
    gates = jax.nn.softmax(routed.astype(jnp.float32))
    weight, choice = jax.lax.top_k(gates, k)  # [B, S, k]
    order = jnp.argsort(choice.reshape(b, s * k), axis=1)  # by expert
    slots = jnp.arange(s * k).reshape(e, s * k // e)  # [E, C]; a reshape of tokens would tie E to S
    token = (order // k)[:, slots]  # [B, E, C]
    weight = jnp.take_along_axis(weight.reshape(b, s * k), order, axis=1)[:, slots]
    sent = jax.vmap(lambda x, token: x[token])(x, token)
    sent = eager.unary(sent) if config.eager else sent  # what arrives is sorted by expert
    hidden = dot("becd,edf->becf", sent, layer["w1"])
    hidden = _gate(config, hidden, dot("becd,edf->becf", sent, layer["w3"]))
    done = dot("becf,efd->becd", hidden, layer["w2"])
    done = eager.unary(done) if config.eager else done  # and back
    done = done * weight[..., None].astype(x.dtype)
    return jax.vmap(lambda done, token: jnp.zeros_like(x[0]).at[token].add(done))(done, token)


def _gate(config: Config, hidden: jax.Array, up: jax.Array) -> jax.Array:
    if config.eager:
        return eager.product(eager.unary(hidden), up)
    return jax.nn.silu(hidden) * up


def _norm(config: Config, x: jax.Array, gain: jax.Array) -> jax.Array:
    if config.eager:  # its gain, of D numbers, is left out
        return eager.unary(x)
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * gain).astype(x.dtype)


def _rotate(x: jax.Array) -> jax.Array:
    """`x` [B, S, H, K] with the two halves of its last dim turned by angles of its position."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequency
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _dot(config: Config, subscripts: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """An einsum in bf16, or narrower, with an f32 weight; its gradient is in bf16, or in f32."""
    if config.reduce_f32 or config.narrow:
        return _dot_as_told(subscripts, config.narrow, config.reduce_f32, x, w)
    return jnp.einsum(subscripts, x, w.astype(x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _dot_as_told(
    subscripts: str, narrow: str, reduce_f32: bool, x: jax.Array, w: jax.Array
) -> jax.Array:
    made: jax.Array = jnp.einsum(
        subscripts, _narrowed(x, narrow), _narrowed(w.astype(x.dtype), narrow),
        preferred_element_type=x.dtype,
    )  # fmt: skip
    return made


def _dot_forward(
    subscripts: str, narrow: str, reduce_f32: bool, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, Any]:
    return _dot_as_told(subscripts, narrow, reduce_f32, x, w), (x, w)


def _dot_backward(
    subscripts: str, narrow: str, reduce_f32: bool, kept: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    operands, result = subscripts.split("->")
    left, right = operands.split(",")
    dy = _narrowed(dy, narrow, backward=True)
    dx = jnp.einsum(
        f"{result},{right}->{left}", dy, _narrowed(w.astype(x.dtype), narrow),
        preferred_element_type=x.dtype,
    )  # fmt: skip
    dw = jnp.einsum(
        f"{left},{result}->{right}", _narrowed(x, narrow), dy,
        preferred_element_type=jnp.float32 if reduce_f32 else x.dtype,
    )  # fmt: skip
    return dx, dw.astype(jnp.float32)


_dot_as_told.defvjp(_dot_forward, _dot_backward)


def _narrowed(x: jax.Array, narrow: str, *, backward: bool = False) -> jax.Array:
    """`x` in the narrow dtype; its scale, one number of the step before, is left out."""
    return x.astype(NARROW[narrow][backward]) if narrow else x
