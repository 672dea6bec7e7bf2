"""Hands the shared objects of build_support/native.py to setuptools, and pins the torch minors they were built for."""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from build_support import native, torches  # noqa: E402


class BuildNative(build_ext):
    """Builds every shared object at once; the one declared extension gives the wheel its platform tag."""

    def run(self):
        package = self._package()
        # install_lib takes the whole build folder, also what an earlier build for another torch left in it.
        for stale in [*package.glob("*.so"), *package.glob("torch*/*.so")]:
            stale.unlink()
        for place, path in native.build(ROOT / "build", torches.find()).items():
            (package / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, package / place)

    def get_outputs(self):
        package = self._package()
        return [str(path) for path in [*package.glob("*.so"), *package.glob("torch*/*.so")]]

    def get_output_mapping(self):
        return {}

    def _package(self) -> Path:
        in_place = self.inplace or getattr(self, "editable_mode", False)
        return ROOT / "python" / "flashtri" if in_place else Path(self.build_lib) / "flashtri"


def dependencies() -> list[str]:
    # An sdist fits every torch that its build accepts; only a wheel is bound to the minors it was built for.
    if "sdist" in sys.argv:
        return ["torch >=" + ".".join(map(str, torches.OLDEST))]
    return [torches.requires_dist(torches.find())]


setup(
    ext_modules=[Extension("flashtri._C", sources=[])],
    cmdclass={"build_ext": BuildNative},
    install_requires=dependencies(),
)
