"""Makes the development environment: torch and the pinned requirements in a virtual environment. Needs only Python.

A torch that the running Python already has is used as it is (a .pth file points to it); --torch VERSION, or there being
none, installs one. Where nothing changed since the last time, it does nothing.
"""

from __future__ import annotations  # so that an older Python gets as far as the message

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DEFAULT_TORCH = "2.13.0"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--torch", default="", help=f"version; default: the one there is, else {DEFAULT_TORCH}")
    options = parser.parse_args()
    venv = options.venv.resolve()
    check_machine()

    present = None if options.torch else torch_of_this_python()
    torch = str(present.folder) if present else f"torch=={options.torch or DEFAULT_TORCH}"
    stamp = venv / "flashtri-setup.json"
    wanted = json.dumps({"python": sys.version, "torch": torch, "requirements": requirements_hash()})
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    print(f"Setting up {venv} (Python {sys.version.split()[0]}, {torch})", flush=True)
    make_venv = [sys.executable, "-m", "venv", "--clear", str(venv)]
    run(make_venv, "`python -m venv` failed; on Debian: apt install python3-venv")
    if present:
        site_packages = sysconfig.get_path("purelib", "posix_prefix", vars={"base": str(venv)})
        Path(site_packages, "flashtri-torch.pth").write_text(f"{present.folder.parent}\n")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    requirements = ["-r", str(ROOT / "requirements" / "dev.txt")]
    run(pip + requirements + ([] if present else [torch]), "pip could not install the requirements; see above")
    stamp.write_text(wanted)
    print(f"Set up {venv}", flush=True)


def check_machine():
    if sys.version_info < (3, 10):  # noqa: UP036 - this script runs before anything has checked
        sys.exit(f"flashtri needs Python >= 3.10; this is {sys.version.split()[0]}. Use `make PYTHON=python3.12 ...`.")
    if not sys.platform.startswith("linux"):
        sys.exit(f"flashtri builds on Linux; this is {sys.platform}.")
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        sys.exit(f"flashtri needs a C++ compiler; {compiler} was not found. On Debian: apt install g++, or set CXX.")


def torch_of_this_python():
    """The torch of the running Python, or None where it has none that the build accepts."""
    from build_support import torches

    if torches.VARIABLE in os.environ:
        return None
    try:
        return torches.find()[0]
    except torches.TorchNotFound:
        return None


def requirements_hash() -> str:
    digest = hashlib.sha256()
    for name in ("requirements/build.txt", "requirements/dev.txt", "examples/minilm/requirements.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def run(command: list[str], remedy: str):
    if subprocess.run(command).returncode:
        sys.exit(f"flashtri: {remedy}")


if __name__ == "__main__":
    main()
