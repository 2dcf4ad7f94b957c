"""Stage 6: a plan as runnable JAX, checked against the compiler."""
