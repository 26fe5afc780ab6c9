"""Times of steps: interleaved, repeated, and on memory that the process keeps."""

import ctypes
import sys
import time

import numpy as np

# Of mallopt, in glibc's malloc.h, and what to set it to.
MALLOC_OPTIONS = {"M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_MMAP_MAX": (-4, 0)}
MALLOC_OPTIONS |= {"M_ARENA_MAX": (-8, 1)}  # arenas of threads give their blocks back


def keep_freed_memory() -> None:
    """Let glibc keep what is freed: by default it gives blocks above 32 MiB back.

    XLA allocates the scratch of a compiled step anew in every step. If that is just
    above, every step touches fresh pages, which costs more than emulating float8. To be
    called before JAX starts its threads.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        for option, value in MALLOC_OPTIONS.values():
            ctypes.CDLL(None).mallopt(option, value)


def times(steps: dict, rounds: int, warm_up: int = 3) -> dict[str, np.ndarray]:
    """Seconds of each step, taken in turns so that all see the same machine.

    In every turn a step runs once before it is timed, as in training after itself.
    """
    for step in steps.values():
        for _ in range(warm_up):
            if not np.isfinite(step()):
                raise ValueError("the loss is not finite")
    seconds = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(s) for name, s in seconds.items()}


def repeated_times(build, rounds: int, repeats: int) -> dict[str, np.ndarray]:
    """The times of steps that are built anew for every repeat.

    Where their tensors come to lie in memory is worth some percent, and stays so for
    as long as a step lives.
    """
    repeated = [times(build(), rounds) for _ in range(repeats)]
    return {name: np.concatenate([r[name] for r in repeated]) for name in repeated[0]}


def figures(seconds: dict[str, np.ndarray], first: str) -> dict[str, dict]:
    """Each step's median time, and its median ratio to another's in the same turn."""
    return {
        name: {
            "ms": float(1e3 * np.median(s)),
            "ratio": float(np.median(s / seconds[first])),
        }
        for name, s in seconds.items()
    }
