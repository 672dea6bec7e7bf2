"""What `python -m aot facts` says of kernels: tensor cores by SASS, occupancy by arithmetic."""

import pytest

from aot import build, embed, facts, variants
from aot.tiles import Tile


def fwd(arch: int) -> variants.Variant:
    return variants.Variant("fwd", "bf16", "none", arch, Tile(128, 64, 64, 4, 2))


@pytest.mark.parametrize(("arch", "instruction"), [(80, "HMMA"), (90, "HGMMA"), (100, "UTCHMMA"), (120, "HMMA")])
def test_products_run_on_the_architectures_tensor_cores(arch, instruction, tmp_path):
    embed.embed(build.build([fwd(arch)], jobs=1), tmp_path)
    found = facts.tensor_instructions(tmp_path / "cubins" / f"{fwd(arch).name}.cubin")
    assert list(found) == [instruction]
    table = facts.tables(tmp_path)
    assert f"## Compute capability {arch // 10}.{arch % 10}" in table
    assert f"{found[instruction]} {instruction}" in table


def test_blocks_at_once():
    kernel = {"arch": 90, "num_warps": 8, "registers": 128, "shared": 100 << 10}
    assert facts.blocks_at_once(kernel) == 2  # 65,536 registers over 256 threads of 128
    assert facts.blocks_at_once(kernel | {"registers": 129}) == 1
    assert facts.blocks_at_once(kernel | {"shared": 114 << 10}) == 1  # 228 KiB, less 1 for each block
    assert facts.blocks_at_once(kernel | {"arch": 80}) == 1  # 164 KiB
    assert facts.blocks_at_once({"arch": 86, "num_warps": 8, "registers": 32, "shared": 0}) == 6  # 48 warps
