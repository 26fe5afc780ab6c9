"""ScaledAdamW."""

import keras

from keras_scalify.optimizers.adam_update import AdamUpdate


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledAdamW(AdamUpdate, keras.optimizers.AdamW):
    """AdamW whose moments rest in 16 or 8 bits: decay is decoupled, 0.004 by default.

    A keras.optimizers.AdamW. See ScaledAdam.

    Args:
        *args, **kwargs: those of keras.optimizers.AdamW, all of them.
        state_dtype: "float16" (default): 2 bytes a moment, a float32 scalar a tensor.
            "bfloat16": 2 bytes, no scale, 3 bits less precise. "float8": 1 byte; the
            root of v as an unsigned 4-exponent 4-mantissa code with a scale for every
            256 elements, m as a 3-exponent 4-mantissa code of m / r, which is bounded.
            "float32": keras.optimizers.AdamW exactly. Or a dict of "momentum" and
            "velocity".
        seed: int, of the stochastic rounding. Default 0.
        min_size: variables with fewer elements keep float32 where others have 8 bits.
            Default 4096.

    Raises:
        ValueError: an unknown state_dtype, a seed or min_size that is no int; what
            AdamW raises.

    Example:

    >>> import keras_scalify as ks
    >>> optimizer = ks.optimizers.ScaledAdamW(1e-3, weight_decay=0.01)

    Reference: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).
    """
