"""Probabilistic programs with NumPyro: variational steps and Hamiltonian Monte Carlo."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from numpyro.infer.util import log_density

from tests.frameworks.shapes import Program

ROWS, FEATURES = 64, 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, FEATURES)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)


def _logistic(x: Any, y: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(FEATURES), 1.0).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + bias), obs=y)


def _svi(guide: Any) -> Program:
    svi = SVI(_logistic, guide, numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=4))
    state = svi.init(jax.random.PRNGKey(0), X, Y)
    return svi.update, (state, X, Y)


def variational_normal() -> Program:
    """A mean-field guide."""
    return _svi(AutoNormal(_logistic))


def variational_low_rank() -> Program:
    """A guide with a low-rank covariance."""
    return _svi(AutoLowRankMultivariateNormal(_logistic, rank=4))


def _mcmc(kernel: Any) -> Program:
    """One step of each of eight chains; the kernel maps over chains itself."""
    states = kernel.init(jax.random.split(jax.random.PRNGKey(0), 8), 4, None, (X, Y), {})
    return lambda states, x, y: kernel.sample(states, (x, y), {}), (states, X, Y)


def hamiltonian() -> Program:
    """HMC with a fixed number of steps, in warm-up."""
    return _mcmc(HMC(_logistic, num_steps=4))


def no_u_turn() -> Program:
    """NUTS: a tree is doubled until it turns; chains stop one by one."""
    return _mcmc(NUTS(_logistic, max_tree_depth=4))


def mixture_density() -> Program:
    """The density of a mixture whose assignments are summed out, and its gradient."""

    def model(data: Any) -> None:
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(8)))
        with numpyro.plate("components", 8):
            centers = numpyro.sample("centers", dist.Normal(jnp.zeros(FEATURES), 3.0).to_event(1))
        parts = dist.MixtureSameFamily(
            dist.Categorical(probs=weights), dist.Normal(centers, 1.0).to_event(1)
        )
        with numpyro.plate("rows", data.shape[0]):
            numpyro.sample("x", parts, obs=data)

    def gradient(values: Any, data: jax.Array) -> Any:
        return jax.value_and_grad(lambda v: log_density(model, (data,), {}, v)[0])(values)

    values = {
        "weights": np.full(8, 1 / 8, np.float32),
        "centers": RNG.normal(size=(8, FEATURES)).astype(np.float32),
    }
    return gradient, (values, X)
