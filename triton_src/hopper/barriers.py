"""Mbarriers for tiles in shared memory, and named barriers by which consumer warpgroups take turns."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

# Of the 16 barriers a CTA has, Triton itself takes the first ones.
FIRST_BARRIER = gl.constexpr(8)


@gluon.jit
def barriers(readers: gl.constexpr, COUNT: gl.constexpr):
    """COUNT barriers, [COUNT, 1]; each one's phase ends when `readers` have arrived."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=readers)
    return made


@gluon.constexpr_function
def _barrier(instruction, turn):
    # 256 threads meet: the warpgroup whose turn ends arrives, the one whose turn begins waits.
    return f"bar.{instruction} {FIRST_BARRIER.value + turn}, 256; mov.b32 $0, $1;"


@gluon.jit
def wait_for_turn(TURN: gl.constexpr):
    """Blocks this warpgroup until another one has given it the turn."""
    gl.inline_asm_elementwise(
        _barrier("sync", TURN), "=r,r,~{memory}", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def give_turn(TURN: gl.constexpr):
    """Lets the warpgroup with number TURN go on; does not block."""
    gl.inline_asm_elementwise(
        _barrier("arrive", TURN), "=r,r,~{memory}", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def meet():
    """Both consumer warpgroups wait for each other."""
    wait_for_turn(0)
