"""The job of several processes that jax.distributed.initialize() has started, and its store."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax._src import distributed


class Job(NamedTuple):
    """This process among those that jax.distributed.initialize() has joined, and their store."""

    process: int
    processes: int
    store: Any

    def put_bytes(self, key: str, value: bytes) -> None:
        """Publishes a value for all processes."""
        self.store.key_value_set_bytes(key, value)

    def wait_bytes(self, key: str, seconds: float) -> bytes:
        """The value that some process publishes; TimeoutError after so many seconds."""
        try:
            return self.store.blocking_key_value_get_bytes(key, int(seconds * 1e3))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                raise TimeoutError(key) from None
            raise


def job() -> Job | None:
    """The job of several processes that this one is in; None where it is alone."""
    state = distributed.global_state
    if state.client is None or state.num_processes is None or state.num_processes < 2:
        return None
    return Job(state.process_id, state.num_processes, state.client)
