"""The shared objects of the wheel, compiled by a generated build.ninja: parallel, and a second build does nothing.

The wheel holds, in flashtri/:
    libflashtri_core.so               csrc/core and the embedded cubins: no torch, no Python
    torch<minor>/libflashtri.so       csrc/torch, once for each torch minor: no Python symbols
    _C.<abi>.so                       csrc/python: pybind11 over the core
"""

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from build_support.torches import Torch

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "csrc"
CORE = "libflashtri_core.so"
BINDING = "libflashtri.so"

COMMON = ["-O2", "-g0", "-fPIC", "-Wall", "-Wextra", "-Werror=return-type", "-fvisibility-inlines-hidden"]
HIDDEN = ["-fvisibility=hidden"]
# C++20 is what torch builds extensions with from 2.13 on; the warning is about its headers.
TORCH = ["-std=c++20", "-Wno-maybe-uninitialized"]
SHARED = ["-shared", "-s", "-Wl,--no-undefined", "-Wl,-O1"]

RULES = """\
# Written by build_support/native.py.
ninja_required_version = 1.10
rule compile
  command = $compiler $flags -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = compile $in
rule link
  command = $compiler $flags -o $out $in $libraries
  description = link $out
"""


def build(build_folder: Path, torches: list[Torch]) -> dict[str, Path]:
    """Builds everything; returns the shared objects by their place in the package.

    Cubins go to build_folder/aot, which the aot step caches by content; objects to one folder for each set of
    interpreter and torch minors, so that environments do not undo each other's work.
    """
    _check_tools()
    build_folder = build_folder.resolve()  # the steps run in different folders
    cubins = build_folder / "aot"
    print("flashtri: for " + ", ".join(f"torch {torch.version} in {torch.folder}" for torch in torches), flush=True)
    _run([sys.executable, "-m", "aot", "--out", str(cubins)])
    key = "-".join([sys.implementation.cache_tag] + [f"torch{torch.minor}" for torch in torches])
    folder = build_folder / "native" / key
    folder.mkdir(parents=True, exist_ok=True)
    text, outputs = _ninja_file(folder, cubins, torches)
    (folder / "build.ninja").write_text(text)
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    _run([sys.executable, "-m", "ninja", "-C", str(folder), "-j", jobs])
    return outputs


def extension_name() -> str:
    return "_C" + sysconfig.get_config_var("EXT_SUFFIX")


def _ninja_file(folder: Path, cubins: Path, torches: list[Torch]) -> tuple[str, dict[str, Path]]:
    lines = [RULES, f"compiler = {os.environ.get('CXX', 'g++')}"]
    outputs = {}

    def library(place: str, sources: list[Path], compile_flags: list, link_flags: list, needs=(), embeds=()):
        objects = []
        for source in sources:
            target = folder / "objects" / place.split(".so")[0] / f"{source.name}.o"
            depends = embeds if source.suffix == ".S" else ()
            lines.extend(_edge("compile", target, [source], depends, flags=compile_flags))
            objects.append(target)
        outputs[place] = folder / place
        lines.extend(_edge("link", folder / place, objects, needs, flags=SHARED, libraries=link_flags))
        return folder / place

    include = ["-I", SOURCE, "-I", SOURCE / "core"]
    core = library(
        CORE,
        [*sorted((SOURCE / "core").glob("*.cpp")), cubins / "kernels.cpp", cubins / "kernels.S"],
        # cuda.h comes with Triton's wheel; only its types are used, the driver is opened at run time.
        [*COMMON, "-std=c++17", *include, "-I", cubins, "-isystem", _package("triton") / "backends/nvidia/include"],
        ["-Wl,-soname," + CORE, "-ldl", "-lpthread"],
        embeds=sorted((cubins / "cubins").glob("*.cubin")),
    )
    link_core = ["-L", folder, "-l:" + CORE]
    for torch in torches:
        headers = [torch.folder / "include", torch.folder / "include/torch/csrc/api/include"]
        library(
            f"torch{torch.minor}/{BINDING}",
            sorted((SOURCE / "torch").glob("*.cpp")),
            [*COMMON, *HIDDEN, *TORCH, *include, *(flag for path in headers for flag in ("-isystem", path))],
            # The second $ORIGIN serves programs that put both libraries side by side. libtorch registers the device
            # back ends, and no symbol of it is used: without --no-as-needed the linker would drop it.
            [
                *("-Wl,-soname," + BINDING, r"-Wl,-rpath,$ORIGIN/..:$ORIGIN", *link_core),
                *("-L", torch.folder / "lib", "-Wl,--no-as-needed", "-lc10", "-ltorch_cpu", "-ltorch"),
            ],
            needs=[core],
        )
    python = ["-isystem", sysconfig.get_path("include"), "-isystem", _package("pybind11") / "include"]
    library(
        extension_name(),
        sorted((SOURCE / "python").glob("*.cpp")),
        [*COMMON, *HIDDEN, "-std=c++17", *include, *python],
        # Python's own symbols come from the interpreter that loads the module.
        ["-Wl,--unresolved-symbols=ignore-all", r"-Wl,-rpath,$ORIGIN", *link_core],
        needs=[core],
    )
    return "\n".join(lines) + "\n", outputs


def _edge(rule: str, target: Path, inputs: list[Path], depends, **variables: list) -> list[str]:
    def escape(path) -> str:
        return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

    implicit = " ".join(["|", *map(escape, depends)]) if depends else ""
    lines = [f"build {escape(target)}: {rule} {' '.join(map(escape, inputs))} {implicit}".rstrip()]
    for name, words in variables.items():
        lines.append(f"  {name} = " + " ".join(shlex.quote(str(word)) for word in words).replace("$", "$$"))
    return lines


def _package(name: str) -> Path:
    return Path(next(iter(importlib.util.find_spec(name).submodule_search_locations)))


def _check_tools():
    missing = [name for name in ("ninja", "pybind11", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"flashtri: {', '.join(missing)} not installed in {sys.prefix}, and --no-build-isolation was asked for: "
            "run `pip install -r requirements/build.txt` first."
        )


def _run(command: list[str]):
    # -m looks in the current folder first, which is where the aot package is.
    result = subprocess.run(command, cwd=ROOT)
    if result.returncode:
        raise SystemExit(f"flashtri: `{shlex.join(command)}` failed with status {result.returncode}; see above.")
