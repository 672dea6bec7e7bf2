"""What a kernel must meet to ship, checked on its facts, whether freshly compiled or from the cache."""

from .tiles import MAX_SPILL_BYTES, SHARED_MEMORY


class BuildError(RuntimeError):
    """A kernel that must not ship; the message names it, with figures and remedy."""


def problem(facts: dict) -> str | None:
    """What is wrong: more shared memory than the architecture has, or heavy spills. None where all is well."""
    limit = SHARED_MEMORY[facts["arch"]]
    tile = (
        f"BLOCK_M {facts['block_m']}, BLOCK_N {facts['block_n']}, BLOCK_D {facts['block_d']}, "
        f"{facts['num_warps']} warps, {facts['num_stages']} stages"
    )
    if facts["shared"] > limit:
        return (
            f"{facts['name']}: needs {facts['shared']} bytes of shared memory, sm_{facts['arch']} has {limit} a block "
            f"({tile}). Choose a smaller tile or fewer stages in aot/tiles.py"
        )
    if facts["spill_bytes"] > MAX_SPILL_BYTES:
        return (
            f"{facts['name']}: spills {facts['spill_bytes']} bytes a thread, at most {MAX_SPILL_BYTES} are accepted "
            f"({tile}, {facts['registers']} registers). Choose a smaller tile or more warps in aot/tiles.py"
        )
    return None
