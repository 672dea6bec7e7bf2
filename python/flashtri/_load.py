"""Loads the op library that was built for the torch in use."""

from pathlib import Path

import torch

from flashtri._version import __version__

PACKAGE = Path(__file__).resolve().parent
BINDING = "libflashtri.so"


def carried() -> dict[str, Path]:
    """The op libraries of this installation by torch minor ("2.13")."""
    return {path.parent.name.removeprefix("torch"): path for path in sorted(PACKAGE.glob(f"torch*/{BINDING}"))}


def library_for(torch_version: str) -> Path:
    """The op library for a torch version. Raises ImportError where this installation has none."""
    minor = ".".join(torch_version.split(".")[:2])
    libraries = carried()
    if minor in libraries:
        return libraries[minor]
    if not libraries:
        raise ImportError(
            f"flashtri: {PACKAGE} holds no compiled library: it is a source tree, or its build did not finish. "
            "Run `pip install .` in flashtri's source and import the installed package."
        )
    minors = " and ".join(libraries)
    wanted = " or ".join(f"pip install 'torch=={minor}.*'" for minor in libraries)
    raise ImportError(
        f"flashtri {__version__} was built for torch {minors}; the torch installed here is {torch_version}. "
        f"Either install a torch that fits ({wanted}), or rebuild flashtri for this one: "
        "`pip install --no-build-isolation --force-reinstall --no-deps .` in its source."
    )


def load() -> Path:
    """Registers torch.ops.flashtri.* and returns the library that did; C++ programs load the same file."""
    library = library_for(torch.__version__)
    torch.ops.load_library(library)
    return library
