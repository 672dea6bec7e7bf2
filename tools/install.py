"""Builds the wheel from this source tree and installs it into the running environment, unless it is there already."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from build_support import native, torches  # noqa: E402

INPUTS = ["aot", "build_support", "csrc", "python", "triton_src", "requirements/build.txt"]
INPUTS += ["setup.py", "pyproject.toml", "README.md", "LICENSE"]
VARIABLES = ["FLASHTRI_ARCHS", "FLASHTRI_TORCH", "CXX"]


def main():
    stamp = Path(sys.prefix) / "flashtri-install.sha256"
    wanted = inputs_hash()
    if stamp.is_file() and stamp.read_text() == wanted and importlib.util.find_spec("flashtri"):
        return
    archs = os.environ.get("FLASHTRI_ARCHS") or "all"
    print(f"Building and installing flashtri (architectures: {archs})", flush=True)
    start = time.monotonic()
    # First by itself, since pip would hide the progress; what is left for pip is to pack the results.
    native.build(ROOT / "build", torches.find())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*command, "--no-build-isolation", "--no-deps", str(ROOT)]).returncode:
        sys.exit("flashtri: the build failed; see above")
    stamp.write_text(wanted)
    print(f"Installed flashtri in {time.monotonic() - start:.0f} s", flush=True)


def inputs_hash() -> str:
    digest = hashlib.sha256(repr([os.environ.get(name) for name in VARIABLES]).encode())
    torch = importlib.util.find_spec("torch")
    digest.update((Path(torch.origin).parent / "version.py").read_bytes())
    for name in INPUTS:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
