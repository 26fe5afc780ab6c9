"""Programs for an H100, compiled by JAX on a machine that has no GPU.

Needs the extra `gpu-compile` (XLA's CUDA compiler, about 600 MB, no driver), and
JAX_PLATFORMS=cpu, so that JAX itself runs on the CPU. What XLA would launch is read
from the text of the optimized program:

| figure | what |
|---|---|
| kernels | instructions of the entry computation that launch something |
| bytes moved | sizes of what each kernel reads and writes, added up |
| temporary | XLA's own figure for the program's scratch memory |
| modelled time | sum of max(bytes / bandwidth, flops / rate) over the kernels |

The modelled time compares programs; it is no measurement.
"""

import dataclasses
import math
import re

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

# NVIDIA's data sheet of the H100 SXM: bytes/s, and dense flop/s of which matmuls are
# taken to reach three quarters.
BANDWIDTH = 3.35e12
RATES = {"float8": 0.75 * 1.979e15, "other": 0.75 * 0.989e15}
# What XLA asks of the device it compiles for.
TARGET = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 core_count: 132 fpus_per_core: 128
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048
}
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 3 }
runtime_version { major: 12 minor: 9 }
"""
WIDTHS = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2),
    **dict.fromkeys(("f32", "s32", "u32"), 4),
    **dict.fromkeys(("f64", "s64", "u64"), 8),
}
# Opcodes that launch nothing.
FREE = {
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "parameter",
    "tuple",
}
ARRAY = re.compile(r"\b([a-z]+\d\w*|pred)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(([^)]*)\)")
TRITON = "triton_nested_gemm"
MATMUL = re.compile(r"matmul|gemm")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One instruction that launches something.

    Attributes:
        name: in the program's text.
        kind: opcode, or the library function that it calls.
        shape: of the result, as written.
        bytes_moved: read and written.
        flops: of a matmul; 0 for anything else.
    """

    name: str
    kind: str
    shape: str
    bytes_moved: int
    flops: float

    @property
    def is_float8(self) -> bool:
        return self.kind.endswith("$f8")

    @property
    def modelled_seconds(self) -> float:
        rate = RATES["float8" if self.is_float8 else "other"]
        return max(self.bytes_moved / BANDWIDTH, self.flops / rate)


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program's kernels, its temporary bytes and its text."""

    kernels: tuple[Kernel, ...]
    temporary: int
    text: str

    def figures(self) -> dict[str, float]:
        """One row of a table."""
        float8 = sum(k.is_float8 for k in self.kernels)
        return {
            "kernels": len(self.kernels),
            "float8 matmuls": float8,
            "other matmuls": sum(k.flops > 0 for k in self.kernels) - float8,
            "MiB moved": sum(k.bytes_moved for k in self.kernels) / 2**20,
            "MiB temporary": self.temporary / 2**20,
            "modelled ms": 1e3 * sum(k.modelled_seconds for k in self.kernels),
        }


def arrays(shape: str) -> list[tuple[int, int, list[int]]]:
    """(elements, bytes, sizes) of every array in a shape as XLA writes it."""
    found = []
    for dtype, sizes in ARRAY.findall(shape):
        numbers = [int(n) for n in sizes.split(",") if n]
        count = math.prod(numbers)
        found.append((count, count * WIDTHS[dtype], numbers))
    return found


def matmul_flops(line: str, a, b, y) -> float:
    """2 M N K times the batch, from the elements of both operands and the result."""
    batch = 1
    if found := re.search(r'"lhs_batch_dimensions":\[([^\]]*)\]', line):
        batch = math.prod(a[2][int(i)] for i in re.findall(r"\d+", found[1]))
    return 2.0 * y[0] * math.sqrt(a[0] * b[0] / max(y[0], 1) / batch)


def kind_of(line: str, opcode: str) -> str:
    """The opcode, or the library function that an instruction calls."""
    if target := re.search(r'custom_call_target="([^"]+)"', line):
        return target[1]
    return TRITON if TRITON in line else opcode


def account(text: str) -> tuple[Kernel, ...]:
    """The kernels of a program, from its text."""
    entry = text[text.index("\nENTRY ") :].splitlines()[1:]
    shapes, kernels = {}, []
    for line in entry:
        match = INSTRUCTION.match(line.strip())
        if match is None:
            continue
        name, shape, opcode, arguments = match.groups()
        shapes[name] = shape
        if opcode in FREE:
            continue
        kind = kind_of(line, opcode)
        names = [a.strip().lstrip("%") for a in arguments.split(",") if a.strip()]
        operands = [arrays(shapes.get(n, "")) for n in names]
        result = arrays(shape)
        moved = sum(array[1] for group in (*operands, result) for array in group)
        if kind == TRITON and all(o and o[0][1] == o[0][0] for o in operands[:2]):
            kind += "$f8"  # operands of one byte an element
        flops = 0.0
        if MATMUL.search(kind) and len(operands) > 1:
            flops = matmul_flops(line, operands[0][0], operands[1][0], result[0])
        kernels.append(Kernel(name, kind, shape, moved, flops))
    return tuple(kernels)


def device():
    """An H100 that is known by its description alone."""
    jax.devices()  # registers the plugin
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET, topology="1x1x1"
    )
    return topology.devices[0]


def options(triton: bool) -> dict[str, bool]:
    """Of the compiler. Without Triton's matmuls each is a library call, and seen."""
    return {"xla_gpu_enable_triton_gemm": triton}


def compile_step(function, *arguments, triton: bool = False) -> Program:
    """The program of a JAX function for arguments of these shapes and dtypes."""
    sharding = SingleDeviceSharding(device())
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments
    )
    lowered = jax.jit(function, out_shardings=sharding).lower(*shapes)
    compiled = lowered.compile(compiler_options=options(triton))
    text = compiled.as_text()
    return Program(account(text), compiled.memory_analysis().temp_size_in_bytes, text)


def compile_hlo(text: str) -> Program:
    """The program of HLO text, such as TensorFlow's
    `function.experimental_get_compiler_ir(*arguments)(stage="hlo")`.

    By jaxlib's internals, for lack of a public way (0.10.2).
    """
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _hlo, _jax

    target = device()
    # TensorFlow copies what it assigns to a variable; StableHLO has no copy.
    text = text.replace(" copy(", " reshape(")
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    settings = compiler.get_compile_options(1, 1, env_options_overrides=options(False))
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(proto))
        devices = _jax.DeviceList((target,))
        executable = compiler.backend_compile_and_load(
            target.client, module, devices, settings, []
        )
    text = executable.hlo_modules()[0].to_string()
    temporary = executable.get_compiled_memory_stats().temp_size_in_bytes
    return Program(account(text), temporary, text)
