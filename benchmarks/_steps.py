"""Training steps as functions without arguments, on each backend."""

import keras


def weights(model):
    """JAX's arrays of a model: trainable, and the others."""
    groups = model.trainable_variables, model.non_trainable_variables
    return tuple([v.value for v in group] for group in groups)


def loss_and_gradients(model):
    """A JAX function of weights and a batch to ((loss, updates), gradients)."""
    import jax
    import jax.numpy as jnp

    def step(trainable, fixed, x):
        def loss(trainable):
            y, updates = model.stateless_call(trainable, fixed, x, training=True)
            return jnp.mean(jnp.square(y.astype("float32"))), updates

        return jax.value_and_grad(loss, has_aux=True)(trainable)

    return step


def jax_step(model, optimizer, loss, x, y):
    """Compiled; its state stays on the device."""
    import jax

    def losses(trainable, fixed, x, y):
        outputs, fixed = model.stateless_call(trainable, fixed, x, training=True)
        return loss(y, outputs), fixed

    def update(state, x, y):
        trainable, fixed, slots = state
        gradient = jax.value_and_grad(losses, has_aux=True)
        (value, fixed), grads = gradient(trainable, fixed, x, y)
        trainable, slots = optimizer.stateless_apply(slots, grads, trainable)
        return value, (trainable, fixed, slots)

    optimizer.build(model.trainable_variables)
    variables = (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
    )
    state = tuple([jax.numpy.copy(v.value) for v in group] for group in variables)
    x, y = jax.device_put((x, y))
    lowered = jax.jit(update, donate_argnums=0).lower(state, x, y)
    compiled = lowered.compile()

    def step():
        nonlocal state
        value, state = compiled(state, x, y)
        return float(value)

    step.compiled = compiled
    return step


def tensorflow_step(model, optimizer, loss, x, y):
    """Compiled by XLA."""
    import tensorflow as tf

    optimizer.build(model.trainable_variables)
    x, y = tf.constant(x), tf.constant(y)

    @tf.function(jit_compile=True)
    def update(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        grads = tape.gradient(value, [v.value for v in variables])
        optimizer.apply(grads, variables)
        return value

    def step():
        return float(update(x, y))

    step.function, step.arguments = update, (x, y)
    return step


def torch_step(model, optimizer, loss, x, y):
    """Eager, as Keras trains on Torch."""
    import torch

    optimizer.build(model.trainable_variables)
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    def step():
        value = loss(y, model(x, training=True))
        model.zero_grad()
        value.backward()
        grads = [v.value.grad for v in model.trainable_variables]
        with torch.no_grad():
            optimizer.apply(grads, model.trainable_variables)
        return float(value.detach())

    return step


def jax_gradients(model):
    """Compiled; see gradient_step."""
    import jax

    compiled, state = jax.jit(loss_and_gradients(model)), weights(model)

    def step(x):
        (loss, _), grads = jax.block_until_ready(compiled(*state, x))
        return loss, grads

    return step


def tensorflow_gradients(model):
    """Compiled by XLA; see gradient_step."""
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            y = tf.cast(model(x, training=True), tf.float32)
            loss = tf.reduce_mean(tf.square(y))
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])

    return step


def torch_gradients(model):
    """Eager; see gradient_step."""
    import torch

    def step(x):
        model.zero_grad()
        loss = model(x, training=True).float().square().mean()
        loss.backward()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return loss.detach(), [v.value.grad for v in model.trainable_variables]

    return step


def gradient_step(model):
    """A function of a batch to the mean square of y and its gradients, when done."""
    return globals()[f"{keras.backend.backend()}_gradients"](model)


def keras_step(model, optimizer, loss, x, y):
    """A training step of a Keras model on the active backend."""
    step = globals()[f"{keras.backend.backend()}_step"]
    return step(model, optimizer, loss, x, y)
