"""JAX: steps of a two-layer network over batches of changing size."""

import os
import time

import jax
import jax.numpy as jnp


@jax.jit
def step(weights, x):
    def loss(weights):
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - x) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)], value


key = jax.random.PRNGKey(0)
weights = [jax.random.normal(key, shape) * 0.02 for shape in ((1024, 4096), (4096, 1024))]
total, begin = 0.0, 0.0
for turn in range(150):
    if turn == 30:
        begin = time.perf_counter()
    x = jax.random.normal(jax.random.fold_in(key, turn), (256 << turn % 5, 1024))
    weights, value = step(weights, x)
    total += float(value)
how = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc")
print(f"jax {how}: result {total!r}, {time.perf_counter() - begin:.2f} s")
