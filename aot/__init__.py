"""Ahead-of-time compilation: variants and tiles as data, one cubin each, and the C++ table over them.

variants.py and tiles.py say what is compiled, compiler.py compiles one kernel, build.py all of them (in parallel,
cached by content), embed.py writes what csrc/core links. `python -m aot --help` for the command.
"""
