"""What the convolutional models share. Images are [B, Y, X, C], kernels [y, x, C, O]."""

import jax
import jax.numpy as jnp

Array = jax.Array


def conv2d(x: Array, kernel: Array, *, stride: int = 1) -> Array:
    """The convolution of x [B, Y, X, C] with kernel [y, x, C, O], padded to keep Y / stride."""
    return jax.lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def group_norm(x: Array, gain: Array, bias: Array, *, groups: int) -> Array:
    """x [B, Y, X, C] normalised over space and over each of `groups` bands of channels."""
    wide = x.astype(jnp.float32).reshape(*x.shape[:3], groups, x.shape[3] // groups)
    mean = jnp.mean(wide, axis=(1, 2, 4), keepdims=True)
    variance = jnp.mean((wide - mean) ** 2, axis=(1, 2, 4), keepdims=True)
    normed = ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return (normed * gain + bias).astype(x.dtype)


def upsample(x: Array) -> Array:
    """x [B, Y, X, C] with every pixel repeated twice along Y and X."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
