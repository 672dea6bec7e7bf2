"""Which torch the wheel is built for, found without importing it: the build reads its version, headers and libraries.

A static `requires = ["torch"]` would let pip fetch the newest torch into its isolated environment, and the wheel would
then not fit the torch that is installed. So the torch of the target environment is used where it stands.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# getStream().native_handle(), which gives the current CUDA stream without linking CUDA, exists from 2.11 on.
OLDEST = (2, 11)
VARIABLE = "FLASHTRI_TORCH"


class Torch(NamedTuple):
    folder: Path  # the package: include/ and lib/ lie in it
    version: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def number(self) -> tuple[int, int]:
        major, minor = self.minor.split(".")
        return int(major), int(minor)


class TorchNotFound(RuntimeError):
    pass


def required_versions() -> list[str]:
    """The entries of FLASHTRI_TORCH that are versions: torch of that version is then a build requirement."""
    return [entry for entry in _entries() if re.fullmatch(r"\d+\.\d+(\.\d+)?(\+\w+)?", entry)]


def find() -> list[Torch]:
    """The torch packages to build for, one for each minor, oldest first.

    Raises TorchNotFound where there is none, or one older than OLDEST.
    """
    versions = required_versions()
    folders = [entry for entry in _entries() if entry not in versions]
    found = [_read(Path(folder)) or _missing(f"{VARIABLE} names {folder}, which holds no torch.") for folder in folders]
    for version in versions:
        matches = [torch for torch in _installed() if torch.version.split("+")[0] == version.split("+")[0]]
        found += matches[:1] or _missing(f"{VARIABLE} asks for torch {version}, which is not installed here.")
    if not found:
        found = _installed()[:1] or _missing("no torch in the environment that flashtri is built for.")
    by_minor = {torch.number: torch for torch in found}
    for number, torch in by_minor.items():
        if number < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise TorchNotFound(f"flashtri needs torch >= {oldest}; found {torch.version} in {torch.folder}.")
    return [by_minor[number] for number in sorted(by_minor)]


def requires_dist(torches: list[Torch]) -> str:
    """The wheel's requirement: exactly the minors it carries a binding for."""
    numbers = [torch.number for torch in torches]
    (major, first), (_, last) = numbers[0], numbers[-1]
    if first == last:
        return f"torch =={major}.{last}.*"
    gaps = [f"!={major}.{minor}.*" for minor in range(first + 1, last) if (major, minor) not in numbers]
    return "torch " + ",".join([f">={major}.{first}", *gaps, f"<{major}.{last + 1}"])


def _entries() -> list[str]:
    return [entry for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]


def _installed() -> list[Torch]:
    folders = list(sys.path)
    # Build isolation hides the target's packages from sys.path. pip does so with environment variables while it runs
    # the target's own interpreter, which, asked without them, tells. Other front ends (`python -m build`) make a fresh
    # environment; the one that is activated is then the target.
    prefixes = filter(None, (os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX")))
    for python in [sys.executable, *(os.path.join(prefix, "bin", "python") for prefix in prefixes)]:
        folders += _import_path(python)
    return list(filter(None, map(_read, map(Path, folders))))


def _import_path(python: str) -> list[str]:
    hidden_by_pip = ("PYTHONPATH", "PYTHONNOUSERSITE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden_by_pip}
    command = [python, "-c", "import sys; print(*sys.path[1:], sep='\\n')"]
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def _read(folder: Path) -> Torch | None:
    for package in (folder / "torch", folder):
        version = package / "version.py"
        if version.is_file() and (package / "include" / "ATen").is_dir():
            match = re.search(r"^__version__ = '([^']+)'", version.read_text(), re.M)
            if match:
                return Torch(package.resolve(), match[1])
    return None


def _missing(problem: str):
    raise TorchNotFound(
        f"{problem}\n"
        "flashtri's binding fits one torch minor, so the build must know which torch it is for. Either\n"
        "  - install torch in the target environment first and run that environment's `python -m pip install .`, or\n"
        f"  - set {VARIABLE} to the version in use there (for example {VARIABLE}=2.13.0), or to the folder that\n"
        f"    holds it; several folders, separated by '{os.pathsep}', give one wheel for several minors.\n"
        f"This build ran {sys.executable} and looked on its import path and in the activated environment."
    )
