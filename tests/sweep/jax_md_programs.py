"""Molecular dynamics with JAX MD: energies of pairs, integrators, neighbour lists."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_md import energy, partition, simulate, space

from tests.frameworks.shapes import Program

PARTICLES, BOX = 64, 6.0
GRID = np.stack(np.meshgrid(*[np.arange(4)] * 3), -1).reshape(PARTICLES, 3)
POINTS = (GRID * (BOX / 4) + 0.05 * np.random.default_rng(0).normal(size=GRID.shape)).astype(
    np.float32
)


def lennard_jones() -> Program:
    """Ten steps at constant energy, all pairs in one matrix."""
    displacement, shift = space.periodic(BOX)
    init, apply = simulate.nve(energy.lennard_jones_pair(displacement), shift, 1e-3)
    state = init(jax.random.key(0), jnp.asarray(POINTS), kT=0.1)
    return lambda state: jax.lax.fori_loop(0, 10, lambda i, s: apply(s), state), (state,)


def langevin() -> Program:
    """A thermostat with noise, soft spheres."""
    displacement, shift = space.periodic(BOX)
    init, apply = simulate.nvt_langevin(energy.soft_sphere_pair(displacement), shift, 1e-3, 0.1)
    state = init(jax.random.key(0), jnp.asarray(POINTS))
    return lambda state: jax.lax.fori_loop(0, 5, lambda i, s: apply(s), state), (state,)


def neighbour_list() -> Program:
    """The energy and forces of Morse pairs within a cutoff, the list made anew."""
    displacement, _ = space.periodic(BOX)
    lists, potential = energy.morse_neighbor_list(displacement, BOX, r_cutoff=2.0)
    known = lists.allocate(jnp.asarray(POINTS))

    def forces(points: jax.Array, known: Any) -> Any:
        now = known.update(points)
        value, gradient = jax.value_and_grad(lambda p: potential(p, now))(points)
        return value, -gradient

    assert isinstance(known, partition.NeighborList)
    return forces, (POINTS, known)


def minimisation() -> Program:
    """FIRE descent, a step of it vmapped over copies."""
    from jax_md import minimize

    displacement, shift = space.periodic(BOX)
    init, apply = minimize.fire_descent(energy.soft_sphere_pair(displacement), shift)
    states = jax.vmap(init)(jnp.stack([jnp.asarray(POINTS)] * 8))
    return jax.vmap(apply), (states,)
