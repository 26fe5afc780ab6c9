"""ScaledAdamW."""

import keras

from keras_scalify.optimizers.adam_update import AdamUpdate


@keras.saving.register_keras_serializable(package="keras_scalify")
class ScaledAdamW(AdamUpdate, keras.optimizers.AdamW):
    """AdamW whose moments rest in 16 bits: decay is decoupled, 0.004 by default.

    A keras.optimizers.AdamW. See ScaledAdam.

    Args:
        *args, **kwargs: those of keras.optimizers.AdamW, all of them.
        state_dtype: "float16" (default), "bfloat16" or "float32"
            (keras.optimizers.AdamW exactly).
        seed: int, of the stochastic rounding. Default 0.

    Raises:
        ValueError: an unknown state_dtype, a seed that is no int; what AdamW raises.

    Example:

    >>> import keras_scalify as ks
    >>> optimizer = ks.optimizers.ScaledAdamW(1e-3, weight_decay=0.01)

    Reference: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).
    """
