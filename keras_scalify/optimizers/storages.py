"""Which storage a `state_dtype` names."""

from keras_scalify.formats import FORMATS
from keras_scalify.optimizers.block_storage import BlockStorage, RelativeStorage
from keras_scalify.optimizers.codes import CODES
from keras_scalify.optimizers.storage import Storage

_WHOLE = {
    name: Storage(format=FORMATS[name]) for name in ("float32", "bfloat16", "float16")
}


def _blocks(name: str) -> BlockStorage:
    return BlockStorage(code=CODES[name], format=CODES[name].format)


def _ratios(limit: float) -> RelativeStorage:
    code = CODES["float8_e3m4"]
    return RelativeStorage(code=code, format=code.format, limit=limit)


# By state_dtype and what a moment is: "signed", "root" (of a second moment: no sign) or
# "ratio" (a first moment beside a root).
STORAGES: dict[str, dict[str, Storage]] = {
    **{
        name: dict.fromkeys(("signed", "root", "ratio"), s)
        for name, s in _WHOLE.items()
    },
    "float8": {
        "signed": _blocks("float8_e4m3fn"),
        "root": _blocks("float8_ue4m4"),
        "ratio": _ratios(8.0),
    },
}


def ratio_storage(beta_1: float, beta_2: float) -> Storage:
    """The 8-bit storage of Adam's first moment: relative to the root of the second.

    `|m| / r <= (1 - beta_1) / sqrt((1 - beta_2) (1 - b))`, `b = beta_1**2 / beta_2`, by
    Cauchy and Schwarz. Without a bound (b at least 1) it rests in blocks.
    """
    b = beta_1**2 / max(beta_2, 1e-9)
    if b >= 1 or beta_2 >= 1:
        return STORAGES["float8"]["signed"]
    limit = (1 - beta_1) / ((1 - beta_2) * (1 - b)) ** 0.5
    # The stored root is a rounded one, and at least half of the exact one.
    return _ratios(2.0 * max(limit, 2.0**-6))


def parse_state_dtype(state_dtype, moments: dict[str, str]) -> dict[str, Storage]:
    """The storage of each moment.

    Args:
        state_dtype: a name in STORAGES, or a dict of one for each moment.
        moments: name of each moment to what it is, a key of the rows of STORAGES.

    Raises:
        ValueError: names what came and what is allowed.
    """
    names = state_dtype if isinstance(state_dtype, dict) else {}
    if isinstance(state_dtype, str):
        names = dict.fromkeys(moments, state_dtype)
    known = all(isinstance(n, str) and n in STORAGES for n in names.values())
    if set(names) != set(moments) or not known:
        raise ValueError(
            f"`state_dtype` must be one of {', '.join(STORAGES)}, or a dict of one for "
            f"each of {', '.join(moments)}. Received: state_dtype={state_dtype!r}"
        )
    return {name: STORAGES[names[name]][kind] for name, kind in moments.items()}
