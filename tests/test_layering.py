"""The structure of the package, read from its source with `ast` alone.

A check takes the package's folder and returns one line for each violation.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "keras_scalify"

# Lowest first. A unit is a file or a folder of the package; it imports units of lower
# rank, and the files of its own folder.
RANKS = (
    {"formats"},
    {"recipes", "scaling", "config", "equations"},
    {"rounding", "scaled_tensor"},
    {"statistics"},
    {"backend"},
    {"ops"},
    {"layers", "optimizers"},
    {"conversion", "analysis"},
    {"callbacks"},
    {"__init__"},
)
RANK = {unit: rank for rank, units in enumerate(RANKS) for unit in units}

# Each imported by backend/<name>.py and backend/<name>_*.py only.
FRAMEWORKS = {"jax", "tensorflow", "torch"}

MAX_FILE_LINES = 200
MAX_BODY_LINES = 25
MAX_LONG_BODY_LINES = 60

# Exceptions: the reason stands beside each. One that is not needed is a violation too.
KERAS_SRC: dict[str, str] = {}  # "file.py": why there is no public way
LONG_BODIES: dict[str, str] = {}  # "folder/file.py:Class.function": why it is long


def sources(package):
    """Yields the path within the package, and the syntax tree, of each file."""
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(package), ast.parse(text, str(path))


def imports(path, tree):
    """The absolute dotted names that a file of the package imports, at any depth."""
    folder = ("keras_scalify", *path.parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            base = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def functions(tree, prefix=""):
    """Yields the qualified name and the node of each function, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        name = f"{prefix}{node.name}" if named else prefix
        if named and not isinstance(node, ast.ClassDef):
            yield name, node
        yield from functions(node, f"{name}." if named else prefix)


def body_lines(function):
    """How many lines the body has, without the docstring."""
    docstring = ast.get_docstring(function) is not None
    body = function.body[docstring:]
    return function.end_lineno - body[0].lineno + 1 if body else 0


def check_ranks(package):
    found = []
    for path, tree in sources(package):
        unit = Path(path.parts[0]).stem
        if unit not in RANK:
            found.append(f"{path}: {unit} has no rank")
            continue
        for name in imports(path, tree):
            root, target, *_ = f"{name}.__init__".split(".")
            if root != "keras_scalify":
                continue
            target = target if target in RANK else "__init__"
            if target != unit and RANK[target] >= RANK[unit]:
                found.append(f"{path}: imports {name}")
    return found


def check_frameworks(package):
    return [
        f"{path}: imports {name}"
        for path, tree in sources(package)
        for name in imports(path, tree)
        for root in [name.split(".")[0]]
        if root in FRAMEWORKS
        and (path.parts[0] != "backend" or path.stem.split("_")[0] != root)
    ]


def check_keras_src(package, allowed=KERAS_SRC):
    used = {
        path.as_posix()
        for path, tree in sources(package)
        if any(f"{name}.".startswith("keras.src.") for name in imports(path, tree))
        or any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "keras.src"
            for node in ast.walk(tree)
        )
    }
    found = [f"{path}: uses keras.src" for path in sorted(used - set(allowed))]
    unused = sorted(set(allowed) - used)
    return found + [f"{path}: needs no exception" for path in unused]


def check_file_lengths(package):
    found = []
    for path in sorted(package.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            found.append(f"{path.relative_to(package)}: {lines} lines")
    return found


def check_function_lengths(package, allowed=LONG_BODIES):
    found, unused = [], set(allowed)
    for path, tree in sources(package):
        for name, node in functions(tree):
            key, lines = f"{path.as_posix()}:{name}", body_lines(node)
            limit = MAX_LONG_BODY_LINES if key in allowed else MAX_BODY_LINES
            if lines > MAX_BODY_LINES:
                unused.discard(key)
            if lines > limit:
                found.append(f"{key}: {lines} lines, at most {limit}")
    return found + [f"{key}: needs no exception" for key in sorted(unused)]


def check_backend_names(package):
    """The three backends list the same names in `__all__`."""
    listed = {
        path.stem: set(ast.literal_eval(node.value))
        for path, tree in sources(package)
        if path.parts[0] == "backend" and path.stem in FRAMEWORKS
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    }
    everywhere = set().union(*listed.values())
    return [
        f"backend/{backend}.py: lacks {name}"
        for backend, names in listed.items()
        for name in sorted(everywhere - names)
    ]


CHECKS = (
    check_ranks,
    check_frameworks,
    check_keras_src,
    check_file_lengths,
    check_function_lengths,
    check_backend_names,
)


@pytest.mark.parametrize("check", CHECKS)
def test_package(check):
    assert check(PACKAGE) == []


LONG = "def f():\n" + "    x = 1\n" * 26
DOCUMENTED = 'def f():\n    """' + "long\n" * 30 + '"""\n    return 1'

VIOLATIONS = (
    (check_ranks, "formats.py", "from keras_scalify import scaling"),
    (check_ranks, "scaling.py", "import keras_scalify.recipes"),
    (check_ranks, "ops/dot.py", "from ..layers.dense import Dense"),
    (check_ranks, "ops/dot.py", "def f():\n    from .. import optimizers"),
    (check_ranks, "layers/dense.py", "from keras_scalify import ScaledDense"),
    (check_ranks, "novel.py", ""),
    (check_frameworks, "ops/dot.py", "import jax.numpy as jnp"),
    (check_frameworks, "backend/jax.py", "from torch.nn import functional"),
    (check_frameworks, "layers/torch.py", "import torch"),
    (check_frameworks, "backend/torch_parts.py", "import jax"),
    (check_keras_src, "layers/dense.py", "from keras.src.layers import Dense"),
    (check_keras_src, "layers/dense.py", "from keras import src"),
    (check_keras_src, "layers/dense.py", "import keras\nx = keras.src.backend"),
    (check_file_lengths, "ops/dot.py", "x = 1\n" * 201),
    (check_function_lengths, "ops/dot.py", LONG),
    (check_function_lengths, "ops/dot.py", "class A:\n" + LONG.replace("def", " def")),
)

ACCEPTED = (
    (check_ranks, "layers/dense.py", "from .base import B\nfrom ..ops import dot"),
    (check_ranks, "__init__.py", "from keras_scalify import analysis, layers"),
    (check_frameworks, "backend/jax.py", "import jax"),
    (check_frameworks, "backend/torch_parts.py", "import torch"),
    (check_frameworks, "ops/dot.py", "from keras_scalify.backend import jax"),
    (check_keras_src, "ops/dot.py", '"""Unlike keras.src.ops, this is public."""'),
    (check_file_lengths, "ops/dot.py", "x = 1\n" * 200),
    (check_function_lengths, "ops/dot.py", DOCUMENTED),
)


def write(package, name, text):
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("check", "name", "text"), VIOLATIONS)
def test_violation_is_found(tmp_path, check, name, text):
    write(tmp_path, name, text)
    (line,) = check(tmp_path)
    assert line.startswith(name)


@pytest.mark.parametrize(("check", "name", "text"), ACCEPTED)
def test_sound_file_is_accepted(tmp_path, check, name, text):
    write(tmp_path, name, text)
    assert check(tmp_path) == []


def test_unlike_backends_are_found(tmp_path):
    write(tmp_path, "backend/jax.py", "__all__ = ['amax', 'einsum']")
    write(tmp_path, "backend/torch.py", "__all__ = ['amax']")
    assert check_backend_names(tmp_path) == ["backend/torch.py: lacks einsum"]


def test_exceptions(tmp_path):
    write(tmp_path, "conversion.py", f"import keras.src\n{LONG}")
    reason = {"conversion.py": "no public way"}
    assert check_keras_src(tmp_path, reason) == []
    assert check_keras_src(tmp_path, reason | {"gone.py": "was needed"})
    reason = {"conversion.py:f": "one table"}
    assert check_function_lengths(tmp_path, reason) == []
    assert check_function_lengths(tmp_path, reason | {"gone.py:f": "was needed"})
