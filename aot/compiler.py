"""One kernel -> one cubin and its facts. No GPU, no nvcc and no torch is needed."""

import dataclasses
import os
import tempfile

# Without line tables a cubin holds no build path and is a third of the size.
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
# Triton's own default, said aloud because 3.9 warns where it is not.
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_src

from . import arguments, cubin, hopper
from .limits import BuildError, problem
from .tiles import Tile
from .variants import MASKS, Variant


@dataclasses.dataclass(frozen=True)
class Compiled:
    image: bytes
    facts: dict  # an entry of manifest.json


def constexprs(kernel, mask: str, tile: Tile, features: bool = False) -> dict[str, int]:
    values = {
        "MASK": MASKS[mask],
        "FEATURES": int(features),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": tile.block_d,
    }
    if isinstance(tile, hopper.HopperTile):
        values |= hopper.constexprs(tile)
    return {param.name: values[param.name] for param in kernel.params if param.is_constexpr}


def run_time_params(kernel) -> list[str]:
    """Names of the parameters that a launch passes, in order."""
    return [param.name for param in kernel.params if not param.is_constexpr]


def kernel_of(function: str):
    """The kernel of that name in triton_src."""
    if function in hopper.FUNCTIONS:
        from triton_src.hopper import FUNCTIONS  # imports Gluon, which no other kernel needs

        return FUNCTIONS[function]
    return triton_src.FUNCTIONS[function]


def compile_kernel(variant: Variant, kernel=None, options: dict | None = None) -> Compiled:
    """Compiles one variant; `kernel` replaces the function of that name in triton_src, `options` adds Triton options.

    Raises BuildError where shared memory, spills or the cubin's own parameter list are wrong, and ValueError for a
    parameter that is not in arguments.def.
    """
    compiled = compile_unchecked(variant, kernel, options)
    if message := problem(compiled.facts):
        raise BuildError(message)
    return compiled


def compile_unchecked(variant: Variant, kernel=None, options: dict | None = None) -> Compiled:
    """As compile_kernel, but accepts any amount of shared memory and spills: for experiments."""
    kernel = kernel or kernel_of(variant.function)
    if not isinstance(kernel, triton.JITFunction):
        raise BuildError("TRITON_INTERPRET is set, so Triton will not compile: unset it")
    tile = variant.tile
    consts = constexprs(kernel, variant.mask, tile, variant.features)
    params = run_time_params(kernel)
    known = {name: arguments.lookup(name, variant.function) for name in params}
    index = {param.name: i for i, param in enumerate(kernel.params)}
    signature = dict.fromkeys(index, "constexpr")
    signature |= {name: _triton_type(known[name], variant) for name in params}
    # What the JIT would have found out by looking at the values; the planner guarantees it instead.
    attrs = {(index[n],): [["tt.divisibility", known[n].divisor]] for n in params if known[n].divisor > 1}
    is_hopper = isinstance(tile, hopper.HopperTile)
    source = (hopper.source_class() if is_hopper else ASTSource)(
        fn=kernel, signature=signature, constexprs={(index[n],): value for n, value in consts.items()}, attrs=attrs
    )
    defaults = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if is_hopper:
        defaults["maxnreg"] = tile.registers_at_entry
    options = {**defaults, **(options or {})}
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        # Triton insists on a cache of its own; ours (build.py) is keyed by what we know to matter.
        triton.knobs.cache.dir = folder
        result = triton.compile(source, target=GPUTarget("cuda", variant.arch, 32), options=options)
    image = result.asm["cubin"]
    found = cubin.read(image, result.metadata.name)
    facts = {
        "name": variant.name,
        "symbol": result.metadata.name,
        "function": variant.function,
        "arch": variant.arch,
        "dtype": variant.dtype,
        "mask": variant.mask,
        "features": variant.features,
        **dataclasses.asdict(tile),
        # Warps that a specialised kernel adds are already counted here: the launch uses 32 * num_warps threads.
        "num_warps": result.metadata.num_warps,
        "shared": result.metadata.shared,
        "registers": found.registers,
        "spill_bytes": found.stack_bytes,
        "params": params,
        "constexprs": consts,
        "boxes": hopper.boxes(result.metadata),
        "image_size": len(image),
    }
    check_params(facts, found.param_sizes)
    return Compiled(image, facts)


def _triton_type(argument: arguments.Argument, variant: Variant) -> str:
    if argument.type == "tensor_map":
        return hopper.map_type(argument.name, arguments.TRITON_DTYPE[variant.dtype], variant.tile)
    return argument.triton_type(variant.dtype, variant.mask)


def check_params(facts: dict, sizes: list[int]) -> None:
    """Raises BuildError unless the cubin takes exactly the signature's parameters and Triton's two scratch pointers."""
    expected = [size for name in facts["params"] for size in arguments.lookup(name, facts["function"]).sizes] + [8, 8]
    if sizes != expected:
        raise BuildError(
            f"{facts['name']}: the cubin's parameters have sizes {sizes}, the signature's {expected} (with two scratch "
            f"pointers at the end). The launcher would pass wrong values; does Triton {triton.__version__} lay "
            f"parameters out in another way?"
        )
