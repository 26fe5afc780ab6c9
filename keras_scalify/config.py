"""Settings of the whole process."""

import os

MATMULS = ("auto", "native", "emulated")

_matmul: str | None = None


def _check(form: str, argument: str) -> str:
    if form not in MATMULS:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(MATMULS)}. "
            f"Received: {argument}={form!r}"
        )
    return form


def set_matmul(form: str) -> None:
    """Choose how quantized products are computed.

    Args:
        form: "native": real float8 arrays and the backend's float8 matmul. "emulated":
            the same values on the float8 grid in float32, which is faster where the
            hardware has no float8. "auto" (default): native on a GPU or TPU, emulated
            on a CPU. The environment variable KERAS_SCALIFY_MATMUL sets the value used
            until this is called. A model that is already compiled keeps the form it was
            compiled with.

    Raises:
        ValueError: any other value.

    Example:

    >>> import keras_scalify as ks
    >>> ks.config.set_matmul("native")
    >>> ks.config.matmul()
    'native'
    >>> ks.config.set_matmul("auto")
    """
    global _matmul
    _matmul = _check(form, "form")


def matmul() -> str:
    """The form set by `set_matmul`, or by KERAS_SCALIFY_MATMUL, or "auto"."""
    if _matmul is not None:
        return _matmul
    return _check(
        os.environ.get("KERAS_SCALIFY_MATMUL", "auto"), "KERAS_SCALIFY_MATMUL"
    )
