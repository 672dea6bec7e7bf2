"""What the compiler made of each kernel, as Markdown: `python -m aot facts DIR` of what `--out DIR` wrote.

Occupancy follows from registers, shared memory and warps (CUDA C++ Programming Guide, table of compute capabilities).
Tensor instructions are counted in the SASS: HMMA (mma.sync), HGMMA (wgmma), UTCHMMA (tcgen05).
"""

import collections
import json
import pathlib
import re
import subprocess

from .tiles import ARCH_CLASS

REGISTERS = 65536  # of a multiprocessor, handed out to warps by 256
SHARED_MEMORY = {"ampere": 164 << 10, "small": 100 << 10, "hopper": 228 << 10, "blackwell": 228 << 10}
RESERVED = 1 << 10  # bytes of shared memory that each block takes besides its own
WARPS = {"ampere": 64, "small": 48, "hopper": 64, "blackwell": 64}
TENSOR_INSTRUCTION = re.compile(r"\b(HMMA|HGMMA|UTCHMMA)\b")


def blocks_at_once(kernel: dict) -> int:
    """Blocks that one multiprocessor holds."""
    family, warps = ARCH_CLASS[kernel["arch"]], kernel["num_warps"]
    registers = -(-kernel["registers"] * 32 // 256) * 256 * warps
    shared = kernel["shared"] + RESERVED
    return min(REGISTERS // registers, SHARED_MEMORY[family] // shared, WARPS[family] // warps)


def tensor_instructions(cubin: pathlib.Path) -> dict[str, int]:
    """{name: how many} in the SASS."""
    import triton

    tool = triton.knobs.nvidia.nvdisasm.path
    sass = subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout
    return collections.Counter(TENSOR_INSTRUCTION.findall(sass))


def line(kernel: dict, folder: pathlib.Path) -> str:
    blocks = blocks_at_once(kernel)
    found = tensor_instructions(folder / "cubins" / f"{kernel['name']}.cubin")
    instructions = ", ".join(f"{count} {name}" for name, count in found.items()) or "-"
    cells = (
        kernel["function"],
        kernel["mask"],
        kernel["block_d"],
        f"{kernel['block_m']} x {kernel['block_n']}" if kernel["block_n"] else kernel["block_m"],
        kernel["num_stages"],
        kernel["registers"],
        kernel["spill_bytes"],
        f"{kernel['shared'] / 1024:.0f}",
        f"{blocks} x {kernel['num_warps']}",
        instructions,
    )
    return f"| {' | '.join(map(str, cells))} |"


def tables(folder: pathlib.Path, dtype: str = "bf16") -> str:
    """One table for each architecture, the kernels of one dtype."""
    kernels = json.loads((folder / "manifest.json").read_text())["kernels"]
    text = []
    for arch in sorted({kernel["arch"] for kernel in kernels}):
        text += [
            f"\n## Compute capability {arch // 10}.{arch % 10}\n",
            "| kernel | mask | head_dim | tile | stages | registers | spilled | KiB shared | blocks x warps | SASS |",
            "|---" * 10 + "|",
        ]
        text += [line(k, folder) for k in kernels if k["arch"] == arch and k["dtype"] == dtype]
    return "\n".join(text)
