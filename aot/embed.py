"""Writes what csrc/core links: the cubins, an assembly file that embeds them, and the table `flashtri::kernels()`."""

import json
import os
import pathlib
import shutil

from .build import triton_version

_KERNELS_CPP = """\
// Written by `python -m aot`: the table over the cubins that kernels.S embeds.
#include "registry.h"

extern "C" {{
{externs}
}}

namespace flashtri {{
namespace {{

{params}

const Kernel kKernels[] = {{
{rows}
}};

}}  // namespace

KernelList kernels() {{ return {{kKernels, {count}}}; }}

}}  // namespace flashtri
"""

# Hidden: two libraries in one process must not see each other's cubins. 64: the driver reads the ELF in place.
_IMAGE = """\
    .balign 64
    .hidden {symbol}
    .globl {symbol}
{symbol}:
    .incbin "{path}"
"""


def _symbol(facts: dict) -> str:
    return f"flashtri_cubin_{facts['name']}"


def _assembly(entries: list[dict], folder: pathlib.Path) -> str:
    images = "".join(_IMAGE.format(symbol=_symbol(f), path=folder / "cubins" / f"{f['name']}.cubin") for f in entries)
    return f'    .section .rodata\n{images}    .section .note.GNU-stack, "", @progbits\n'


def _table(entries: list[dict]) -> str:
    # Kernels of one function share one parameter list.
    lists = {tuple(facts["params"]): facts["function"] for facts in entries}
    params = "\n".join(
        f"const Arg k_{function}_params[] = {{{', '.join('Arg::' + name for name in names)}}};"
        for names, function in lists.items()
    )
    rows = "\n".join(
        f'    {{"{f["name"]}", "{f["symbol"]}", Function::{f["function"]}, {f["arch"]}, DType::{f["dtype"]}, '
        f"DType::{f['mask']}, {int(f['features'])}, {f['block_m']}, {f['block_n']}, {f['block_d']}, {f['num_warps']}, "
        f"{f['num_stages']}, {f['shared']}, {f['registers']}, {f['spill_bytes']}, k_{f['function']}_params, "
        f"{len(f['params'])}, "
        f"{{{', '.join(f'{{{rows}, {columns}, {swizzle}}}' for rows, columns, swizzle in f['boxes'])}}}, "
        f"{_symbol(f)}, {f['image_size']}}},"
        for f in entries
    )
    externs = "\n".join(f"extern const unsigned char {_symbol(facts)}[];" for facts in entries)
    return _KERNELS_CPP.format(externs=externs, params=params, rows=rows, count=len(entries))


def _write_if_changed(path: pathlib.Path, text: str) -> None:
    # An unchanged file keeps its time, so that the C++ build has nothing to do.
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def embed(results: list[tuple[dict, pathlib.Path]], folder: pathlib.Path) -> None:
    """Writes cubins/, manifest.json, kernels.S and kernels.cpp below `folder`; removes an earlier build's cubins."""
    folder = folder.resolve()
    cubins = folder / "cubins"
    cubins.mkdir(parents=True, exist_ok=True)
    entries = [facts for facts, _ in results]
    wanted = {f"{facts['name']}.cubin" for facts in entries}
    changed = False
    for path in cubins.iterdir():
        if path.name not in wanted:
            path.unlink()
    for facts, source in results:
        target = cubins / f"{facts['name']}.cubin"
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)
            changed = True
    _write_if_changed(
        folder / "manifest.json", json.dumps({"triton": triton_version(), "kernels": entries}, indent=1) + "\n"
    )
    _write_if_changed(folder / "kernels.cpp", _table(entries))
    _write_if_changed(folder / "kernels.S", _assembly(entries, folder))
    if changed:
        # It names the cubins without holding them: a new cubin must make it look new.
        os.utime(folder / "kernels.S")
