"""Why a program of the sweep is not planned and verified like the others: every row of it known.

A row that deviates without a reason fails the sweep; so does a reason that nothing needs.
"""

REASONS = {
    "diffrax:stochastic_equation": "its error checks call Python: XLA runs such a call on one"
    " device and spreads the result by an all-reduce, which is not modelled (0.8 kB)",
}

# Libraries that were tried with JAX 0.10.2 and Python 3.11.
NOT_INSTALLED = {
    "easydel": "pip finds only a release of 2025, which takes Flax back to 0.10",
    "levanter": "its newest named tensors (Haliax 1.3) import a class that JAX 0.10 no longer has",
    "maxtext": "no distribution found",
    "mistral-jax": "its modules import PyTorch, which is not worth the download",
    "pgx": "installs a top-level package `tests`, which hides ours",
    "transformers, T5": "`jnp.clip(a_max=)`, which JAX 0.10 no longer has",
}
