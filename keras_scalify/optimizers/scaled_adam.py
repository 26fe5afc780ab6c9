"""ScaledAdam."""

import keras

from keras_scalify.optimizers.adam_update import AdamUpdate


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledAdam(AdamUpdate, keras.optimizers.Adam):
    """Adam whose moments rest in 16 or 8 bits: `moment = data * scale`.

    A keras.optimizers.Adam with its arithmetic in float32. It stores m and the root of
    v, each with one power-of-two scale per tensor, rounded stochastically with bits
    from a counter hash: the same seed gives the same training, also after saving and
    loading. With amsgrad the largest root of those rounded is kept, which in 8 bits
    drifts up: 6% above the exact one after 2000 steps of even gradients.

    Args:
        *args, **kwargs: those of keras.optimizers.Adam, all of them.
        state_dtype: "float16" (default): 2 bytes a moment, a float32 scalar a tensor.
            "bfloat16": 2 bytes, no scale, 3 bits less precise. "float8": 1 byte: below.
            "float32": keras.optimizers.Adam exactly. Or a dict of "momentum" and
            "velocity".
        seed: int, of the stochastic rounding. Default 0.
        min_size: variables with fewer elements keep float32 where others have 8 bits.
            Default 4096.

    In 8 bits the root of v rests as an unsigned code of 4 exponent and 4 mantissa bits
    with a scale for every 256 elements, m as a signed one of 3 and 4 bits of m / r,
    which is bounded (Cauchy and Schwarz). They were chosen by measurement: the root,
    stored / exact; how far the weights are from Adam's after 1000 steps, relative to
    their way; the largest update of an element in units of the larger of lr and the
    exact one (gradients of ln-sigma 1.5; the last column 3; beta_2 0.999):

    | root | m | root, stored / exact | distance | largest update |
    |---|---|---|---|---|
    | unsigned 4-4 | 3-4 of m / r | 1.003 +- 0.09 | 9.7% | 2.0 |
    | unsigned 5-3 | 3-4 of m / r | 1.008 +- 0.14 | 13.9% | 1.3 |
    | e4m3 | 3-4 of m / r | 1.008 +- 0.14 | 13.9% | 2.1 |
    | e5m2 | 3-4 of m / r | 1.017 +- 0.21 | 20.1% | 1.6 |
    | unsigned 4-4 | e4m3 of m / r | | 11.8% | 1.9 |
    | unsigned 4-4 | e4m3 of m in blocks | | 12.1% | 4.8 |
    | unsigned 4-4 | e5m2 of m in blocks | | 18.1% | 2.0 |

    Raises:
        ValueError: an unknown state_dtype, a seed or min_size that is no int; what Adam
            raises.

    Example:

    >>> import keras, keras_scalify as ks
    >>> model = keras.Sequential([keras.Input((8,)), ks.layers.ScaledDense(1)])
    >>> model.compile(ks.optimizers.ScaledAdam(1e-3), "mse")

    References: Kingma and Ba, "Adam" (2014); Balança et al., "Scalify" (2024), for
    scaled state; Reddi et al., "On the convergence of Adam and beyond" (2018), for
    amsgrad.
    """
