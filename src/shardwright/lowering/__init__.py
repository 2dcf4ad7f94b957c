"""Stage 6: a plan as runnable JAX."""
