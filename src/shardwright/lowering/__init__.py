"""A plan as runnable JAX."""
