"""Compiles many variants in parallel, through a cache keyed by everything a cubin depends on."""

import ast
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import re
import sys
import time

from . import arguments, hopper
from .limits import BuildError, problem
from .variants import MASKS, Variant

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What turns a kernel into a cubin; the kernel's own file, and those it imports, are added to these.
COMPILER_SOURCES = tuple(ROOT / "aot" / f for f in ("compiler.py", "cubin.py"))


def cache_folder() -> pathlib.Path:
    return pathlib.Path(os.environ.get("FLASHTRI_CACHE") or pathlib.Path.home() / ".cache" / "flashtri")


def triton_version() -> str:
    return importlib.metadata.version("triton")


@functools.cache
def _parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def _meaning(path: pathlib.Path) -> str:
    # Python without comments and layout, which change no cubin (line tables are off). Not ast.dump, whose text differs
    # from one Python to the next: wheels for several of them share the cubins.
    return ast.unparse(_parsed(path))


@functools.cache
def _with_imports(path: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """A file of triton_src and those beside it that it imports, and so on."""
    found = [path]
    for file in found:
        imports = (node for node in _parsed(file).body if isinstance(node, ast.ImportFrom) and node.level == 1)
        found += {file.parent / f"{node.module}.py" for node in imports} - set(found)
    return tuple(sorted(found))


@functools.cache
def _kernel_text(function: str) -> str:
    """All text that makes this kernel's cubins: sources, compiler, and what arguments.def says of its arguments."""
    if function in hopper.FUNCTIONS:
        own = ROOT / "triton_src" / "hopper" / f"{function.partition('_hopper')[0]}.py"
        sources = (*_with_imports(own), ROOT / "aot" / "hopper.py")
    else:
        sources = _with_imports(ROOT / "triton_src" / f"{function}.py")
    text = "\0".join(_meaning(path) for path in (*sources, *COMPILER_SOURCES))
    words = set(re.findall(r"\w+", text))
    return "\0".join([text, *(repr(argument) for name, argument in arguments.read().items() if name in words)])


def cache_key(variant: Variant) -> str:
    """SHA-256 over the sources, the variant and Triton's version: equal keys mean equal cubins."""
    facts = dataclasses.asdict(variant)
    del facts["is_candidate"]  # the name says it
    config = [variant.name, MASKS[variant.mask], facts, triton_version()]
    text = _kernel_text(variant.function) + json.dumps(config, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: pathlib.Path, data: bytes) -> None:
    # Replaced in one step: another build may read the cache at the same time.
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def compile_cached(variant: Variant, folder: pathlib.Path) -> tuple[dict, pathlib.Path, bool]:
    """Facts, path of the cubin in the cache, and whether it had to be compiled."""
    image_path = folder / f"{cache_key(variant)}.cubin"
    facts_path = image_path.with_suffix(".json")
    if image_path.exists() and facts_path.exists():
        return json.loads(facts_path.read_text()), image_path, False
    from .compiler import compile_unchecked  # imports Triton, which a fully cached build does not need

    compiled = compile_unchecked(variant)
    _write(image_path, compiled.image)
    _write(facts_path, json.dumps(compiled.facts).encode())
    return compiled.facts, image_path, True


class Progress:
    """A bar on a terminal, a line every tenth of the work elsewhere; both on stderr."""

    def __init__(self, total: int, stream=sys.stderr):
        self.total, self.done, self.stream, self.start = total, 0, stream, time.monotonic()

    def step(self, name: str) -> None:
        self.done += 1
        seconds = time.monotonic() - self.start
        if self.stream.isatty():
            filled = 30 * self.done // self.total
            bar = "#" * filled + "." * (30 - filled)
            end = "\n" if self.done == self.total else ""
            self.stream.write(f"\r\x1b[K[{bar}] {self.done}/{self.total} kernels {seconds:.0f}s {name}{end}")
        elif self.done == self.total or self.done * 10 // self.total != (self.done - 1) * 10 // self.total:
            self.stream.write(f"kernels: {self.done}/{self.total} ({seconds:.0f}s)\n")
        self.stream.flush()


def build(wanted: list[Variant], jobs: int) -> list[tuple[dict, pathlib.Path]]:
    """(facts, cubin path) of each variant, in their order. Raises BuildError naming every kernel that must not ship."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"cannot create the cache folder {folder} ({error}). Set FLASHTRI_CACHE to one") from error
    progress = Progress(len(wanted))
    results, failures = {}, []
    # Spawned, not forked: Triton's compiler starts threads.
    context = multiprocessing.get_context("spawn")
    cached = [v for v in wanted if (folder / f"{cache_key(v)}.json").exists()]
    compiled = [v for v in wanted if v not in set(cached)]
    for variant in cached:
        results[variant] = compile_cached(variant, folder)
        progress.step(variant.name)
    if compiled:
        with concurrent.futures.ProcessPoolExecutor(max(1, min(jobs, len(compiled))), context) as pool:
            futures = {pool.submit(compile_cached, variant, folder): variant for variant in compiled}
            for future in concurrent.futures.as_completed(futures):
                variant = futures[future]
                try:
                    results[variant] = future.result()
                except Exception as error:
                    # Triton's own errors do not say which kernel. Some tiles of candidates it refuses.
                    is_ours = isinstance(error, (BuildError, ValueError))
                    message = str(error) if is_ours else f"{variant.name}: {type(error).__name__}: {error}"
                    failures += [] if variant.is_candidate else [message]
                progress.step(variant.name)
    unfit = {variant for variant, (facts, _, _) in results.items() if problem(facts)}
    failures += (problem(results[variant][0]) for variant in unfit if not variant.is_candidate)
    if failures:
        raise BuildError("\n".join(failures))
    return [results[variant][:2] for variant in wanted if variant in results and variant not in unfit]
