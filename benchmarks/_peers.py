"""Training steps of other libraries' float8 layers, where they are installed."""

import importlib.util

# flax's own matmul, and its two float8 products.
FLAX_PRODUCTS = ("", "Fp8DotGeneralOp", "Fp8DirectDotGeneralOp")


def flax_mlp(product: str, width: int, depth: int, activation: str, dtype: str):
    """Layers of equal width, with an activation between them."""
    import flax.linen as nn
    from flax.linen import fp8_ops

    given = {"dot_general_cls": getattr(fp8_ops, product)} if product else {}
    layers = [nn.Dense(width, dtype=dtype, **given) for _ in range(depth)]
    last = layers.pop()
    function = getattr(nn, activation)
    return nn.Sequential([f for layer in layers for f in (layer, function)] + [last])


def flax_steps(x, y, width: int, depth: int):
    """flax's Dense in float32 and with its two float8 products; Adam by hand."""
    if importlib.util.find_spec("flax") is None:
        return {}
    import jax
    import jax.numpy as jnp

    def make(product):
        model = flax_mlp(product, width, depth, "relu", "float32")
        state = model.init(jax.random.key(0), x)
        slots = jax.tree.map(lambda p: (jnp.zeros_like(p),) * 2, state["params"])

        def loss(state):
            return jnp.mean(jnp.square(model.apply(state, x) - y))

        def adam(p, g, slot):
            m, v = 0.9 * slot[0] + 0.1 * g, 0.999 * slot[1] + 0.001 * g * g
            return p - 1e-3 * m / (jnp.sqrt(v) + 1e-7), (m, v)

        @jax.jit
        def update(state, slots):
            value, grads = jax.value_and_grad(loss)(state)
            leaves, tree = jax.tree.flatten(state["params"])
            pairs = [
                adam(*t)
                for t in zip(
                    leaves,
                    tree.flatten_up_to(grads["params"]),
                    tree.flatten_up_to(slots),
                    strict=True,
                )
            ]
            # The rest are scales, which flax passes as their own gradient.
            state = {**grads, "params": tree.unflatten([p for p, _ in pairs])}
            return value, state, tree.unflatten([s for _, s in pairs])

        def step():
            nonlocal state, slots
            value, state, slots = update(state, slots)
            return float(value)

        return step

    return {f"flax-{p or 'float32'}": make(p) for p in FLAX_PRODUCTS}


def torchao_steps(x, y, width: int, depth: int):
    """torchao's float8 Linear, emulated, eager; torch's Adam."""
    if importlib.util.find_spec("torchao") is None:
        return {}
    import torch
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    layers = [
        f
        for _ in range(depth)
        for f in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    model = torch.nn.Sequential(*layers[:-1])
    convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    def step():
        optimizer.zero_grad()
        value = torch.mean(torch.square(model(x) - y))
        value.backward()
        optimizer.step()
        return float(value.detach())

    return {"torchao-emulated": step}


PEERS = {"jax": flax_steps, "torch": torchao_steps}
