"""Builds the wheel from this source tree and installs it into the running environment, unless it is there already.

Where FLASHTRI_ARCHS is not set, it compiles for the GPUs of this machine, or for one architecture where there is none:
a developer does not wait for all of them. `pip install .` and `make wheel` compile all.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from aot.variants import ARCHS  # noqa: E402
from build_support import native, torches  # noqa: E402

INPUTS = ["aot", "build_support", "csrc", "python/flashtri", "triton_src", "requirements/build.txt"]
INPUTS += ["setup.py", "pyproject.toml", "README.md", "LICENSE"]
VARIABLES = ["FLASHTRI_ARCHS", "FLASHTRI_TORCH", "CXX"]
WITHOUT_GPU = 90  # the architecture that figures are measured on


def main():
    os.environ["FLASHTRI_ARCHS"] = os.environ.get("FLASHTRI_ARCHS") or archs_of_this_machine()
    stamp = Path(sys.prefix) / "flashtri-install.sha256"
    wanted = inputs_hash()
    if stamp.is_file() and stamp.read_text() == wanted and importlib.util.find_spec("flashtri"):
        return
    print(f"Building and installing flashtri (FLASHTRI_ARCHS={os.environ['FLASHTRI_ARCHS']!r})", flush=True)
    start = time.monotonic()
    # First by itself, since pip would hide the progress; what is left for pip is to pack the results.
    native.build(ROOT / "build", torches.find())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*command, "--no-build-isolation", "--no-deps", str(ROOT)]).returncode:
        sys.exit("flashtri: the build failed; see above")
    stamp.write_text(wanted)
    print(f"Installed flashtri in {time.monotonic() - start:.0f} s", flush=True)


def archs_of_this_machine() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        lines = subprocess.run(query, capture_output=True, text=True).stdout.split()
    except OSError:
        lines = []
    devices = {int(line.replace(".", "")) for line in lines if line.replace(".", "").isdigit()}
    # One that is not compiled by itself, as 8.7, runs what is compiled for an older one of the same generation.
    nearest = {
        max((arch for arch in ARCHS if arch // 10 == device // 10 and arch <= device), default=0) for device in devices
    }
    return " ".join(str(arch) for arch in sorted(nearest - {0})) or str(WITHOUT_GPU)


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
