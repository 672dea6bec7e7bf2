"""The installed package: what its wheel carries, how it imports, what it says of itself."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import flashtri
from aot import arguments, cubin
from flashtri import _C, _load, info

MINORS = list(_load.carried())  # one, unless FLASHTRI_TORCH named several
PACKAGE = Path(flashtri.__file__).parent
CORE = PACKAGE / "libflashtri_core.so"
EXTENSION = Path(_C.__file__)
KERNELS = flashtri.kernels()


def run_python(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def dynamic_section(library) -> str:
    return subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout


def needed(library) -> set[str]:
    """Names of the libraries it asks the loader for."""
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic_section(library)))


def undefined_symbols(library) -> set[str]:
    done = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


def test_wheel_contents():
    files = {str(path) for path in importlib.metadata.files("flashtri") if "__pycache__" not in path.parts}
    package = {name.removeprefix("flashtri/") for name in files if name.startswith("flashtri/")}
    names = ("__init__", "__main__", "_load", "_version", "attention", "biases", "info", "merge", "nested")
    modules = {f"{name}.py" for name in names} | {"py.typed"}
    assert package == modules | {f"torch{minor}/libflashtri.so" for minor in MINORS} | {CORE.name, EXTENSION.name}
    assert all(name.startswith(("flashtri/", f"flashtri-{flashtri.__version__}.dist-info/")) for name in files)
    assert any(name.endswith("licenses/LICENSE") for name in files)


def test_metadata_pins_the_torch_minor():
    metadata = importlib.metadata.metadata("flashtri")
    (required,) = map(Requirement, metadata.get_all("Requires-Dist"))
    assert required.name == "torch"
    fitting = [f"2.{minor}" for minor in range(30) if required.specifier.contains(f"2.{minor}.1")]
    assert fitting == MINORS and torch.__version__.startswith(tuple(MINORS))
    assert metadata["Version"] == flashtri.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"


@pytest.mark.parametrize("library", [flashtri.library, CORE], ids=lambda path: path.name)
def test_no_python_in_the_libraries(library):
    assert not {name for name in undefined_symbols(library) if re.match("_?Py[A-Z_]", name)}
    assert not {name for name in needed(library) if re.search("python|cuda", name)}


def test_who_links_what():
    assert not {name for name in needed(CORE) | needed(EXTENSION) if re.search("torch|c10|python", name)}
    assert CORE.name in needed(EXTENSION) & needed(flashtri.library)
    # Without libtorch, a C++ program that loads the op would find no CUDA back end registered.
    assert {"libtorch.so", "libtorch_cpu.so", "libc10.so"} <= needed(flashtri.library)


@pytest.mark.parametrize("library", [flashtri.library, CORE, EXTENSION], ids=lambda path: path.name)
def test_no_absolute_path_of_the_build(library):
    found = re.search(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic_section(library))
    assert all(entry.startswith("$ORIGIN") for entry in (found[1].split(":") if found else []))


USE = """
import sys
sys.modules["triton"] = None  # importing it raises
import torch, flashtri
q = torch.randn(1, 2, 9, 16, dtype=torch.float16, requires_grad=True)
flashtri.attention(q, q, q, is_causal=True).sum().backward()
assert q.grad.isfinite().all() and flashtri.kernels() is not None
"""


def test_runs_without_triton_and_with_nowhere_to_write():
    status, _, errors = run_python(USE, HOME="/proc/nowhere", XDG_CACHE_HOME="/proc/nowhere", TMPDIR="/proc/nowhere")
    assert status == 0, errors


def test_writes_nothing(tmp_path):
    folder = str(tmp_path)
    status, _, errors = run_python(
        f"import os; os.chdir({folder!r})\n{USE}", HOME=folder, XDG_CACHE_HOME=folder, TMPDIR=folder
    )
    assert status == 0, errors
    assert list(tmp_path.rglob("*")) == []


def test_import_under_another_torch_says_what_to_do():
    code = "import torch; torch.__version__ = '2.99.1'; import flashtri"
    status, _, errors = run_python(code)
    assert status == 1
    assert f"ImportError: flashtri {flashtri.__version__} was built for torch {' and '.join(MINORS)};" in errors
    assert "the torch installed here is 2.99.1" in errors
    assert f"pip install 'torch=={MINORS[0]}.*'" in errors and "pip install --no-build-isolation" in errors


def test_import_of_a_tree_that_was_not_built(monkeypatch):
    monkeypatch.setattr(_load, "PACKAGE", Path("/nowhere"))
    with pytest.raises(ImportError, match="/nowhere holds no compiled library.*pip install"):
        _load.library_for("2.13.0")


def test_picks_the_library_of_the_torch_minor(monkeypatch, tmp_path):
    for minor in ("2.11", "2.13"):
        (tmp_path / f"torch{minor}").mkdir()
        (tmp_path / f"torch{minor}" / _load.BINDING).touch()
    monkeypatch.setattr(_load, "PACKAGE", tmp_path)
    assert _load.library_for("2.11.4+cu130").parent.name == "torch2.11"
    assert _load.library_for("2.13.0a0+git12").parent.name == "torch2.13"
    with pytest.raises(ImportError, match=r"for torch 2.11 and 2.13; the torch installed here is 2.12.0"):
        _load.library_for("2.12.0")


def test_info_command():
    done = subprocess.run([sys.executable, "-m", "flashtri", "info"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"flashtri {flashtri.__version__} in {PACKAGE}\n")
    assert f"{len(KERNELS)} kernels" in done.stdout
    for arch in {kernel["arch"] for kernel in KERNELS}:
        assert f"compute {arch // 10}.{arch % 10}" in done.stdout
    assert torch.__version__ in done.stdout


def test_info_tells_whether_a_device_fits():
    archs = {kernel["arch"] for kernel in KERNELS}
    for arch in archs:
        # A device of this architecture whose blocks may use just what the hungriest of its kernels needs.
        shared = max(kernel["shared"] for kernel in KERNELS if kernel["arch"] == arch)
        assert info.unserved(KERNELS, {"arch": arch, "sm_count": 100, "shared_memory": shared}) == {}
    refused = info.unserved(KERNELS, {"arch": 70, "sm_count": 80, "shared_memory": 96 << 10})
    with_scores = [kernel for kernel in KERNELS if kernel["block_n"] and kernel["mask"] != "keys"]
    combinations = {(kernel["dtype"], kernel["mask"], kernel["block_d"]) for kernel in with_scores}
    assert len(refused) == len(combinations) > 0
    assert all("compute capability 7.0" in reason and "FLASHTRI_ARCHS" in reason for reason in refused.values())


def test_every_cubin_takes_what_the_launcher_passes():
    """The launcher passes the registry's parameters in order, then Triton's two scratch pointers."""
    assert KERNELS
    for kernel in KERNELS:
        sizes = [size for name in kernel["params"] for size in arguments.lookup(name, kernel["name"]).sizes]
        assert cubin.read(_C.image(kernel["name"]), kernel["symbol"]).param_sizes == [*sizes, 8, 8], kernel["name"]
