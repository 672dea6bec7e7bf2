"""The ahead-of-time compiler: the same cubin each time, a cache, failures that say what to do, facts that hold."""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import triton
import triton.language as tl

from aot import arguments, build, cubin, decode, embed, hopper, limits, variants
from aot.compiler import compile_kernel, compile_unchecked, constexprs, kernel_of, run_time_params
from aot.tiles import MAX_SPILL_BYTES, SHARED_MEMORY, Tile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "aot"
CUOBJDUMP = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
REBUILD = "build/aot is of other sources: run `python -m aot --out build/aot`"


SMALL_TILE = Tile(64, 32, 32, 4, 1)


def fwd_variant(arch: int = 90, tile: Tile = SMALL_TILE) -> variants.Variant:
    return variants.Variant("fwd", "f16", "none", arch, tile)


@pytest.fixture(scope="module")
def built() -> list[tuple[dict, bytes]]:
    """(facts, image) of every kernel in build/aot; where nothing was built, of a few kernels for sm_90."""
    manifest = BUILT / "manifest.json"
    entries = json.loads(manifest.read_text())["kernels"] if manifest.exists() else []
    if not entries:
        few = [v for v in variants.variants((90,)) if v.tile.block_d == 64 and v.dtype == "f16" and v.mask != "bf16"]
        return [(facts, path.read_bytes()) for facts, path in build.build(few, jobs=2)]
    return [(facts, (BUILT / "cubins" / f"{facts['name']}.cubin").read_bytes()) for facts in entries]


def test_same_inputs_give_the_same_bytes_from_any_folder(tmp_path):
    for folder in ("aot", "triton_src"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "csrc" / "core").mkdir(parents=True)
    shutil.copy(arguments.PATH, tmp_path / "csrc" / "core")
    script = (
        "import sys; from aot import compiler, variants; from aot.tiles import Tile; "
        "variant = variants.Variant('fwd', 'f16', 'none', 90, Tile(64, 32, 32, 4, 1)); "
        "sys.stdout.buffer.write(compiler.compile_kernel(variant).image)"
    )
    elsewhere = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, check=True).stdout
    here = compile_kernel(fwd_variant()).image
    assert here == elsewhere
    assert str(ROOT).encode() not in here


def test_a_second_build_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHTRI_CACHE", str(tmp_path / "cache"))
    wanted = [fwd_variant(80), fwd_variant(90)]
    first = build.build(wanted, jobs=1)
    monkeypatch.setattr(build.concurrent.futures, "ProcessPoolExecutor", None)
    second = build.build(wanted, jobs=1)
    assert first == second
    assert [facts["arch"] for facts, _ in second] == [80, 90]


def test_the_cache_key_covers_what_a_cubin_depends_on(monkeypatch):
    variant = fwd_variant()
    other_tile = dataclasses.replace(variant, tile=dataclasses.replace(variant.tile, num_stages=2))
    keys = {
        build.cache_key(v) for v in (variant, other_tile, fwd_variant(80), dataclasses.replace(variant, mask="f32"))
    }
    assert len(keys) == 4
    before = build.cache_key(variant)
    monkeypatch.setattr(build, "triton_version", lambda: "0.0")
    assert build.cache_key(variant) != before


def test_generated_files_name_every_kernel_and_an_older_cubin_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHTRI_CACHE", str(tmp_path / "cache"))
    results = build.build([fwd_variant(80), fwd_variant(90)], jobs=1)
    embed.embed(results, tmp_path / "out")
    assert len(list((tmp_path / "out" / "cubins").iterdir())) == 2
    embed.embed(results[:1], tmp_path / "out")
    assert [path.stem for path in (tmp_path / "out" / "cubins").iterdir()] == ["fwd_f16_d32_sm80"]
    assert (tmp_path / "out" / "kernels.S").read_text().count(".incbin") == 1
    assert "return {kKernels, 1}" in (tmp_path / "out" / "kernels.cpp").read_text()
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["triton"] == triton.__version__


def test_too_much_shared_memory_fails_with_name_and_figures():
    with pytest.raises(limits.BuildError) as error:
        compile_kernel(fwd_variant(86, Tile(64, 64, 64, 4, 8)))
    message = str(error.value)
    assert "fwd_f16_d64_sm86" in message and str(SHARED_MEMORY[86]) in message and "aot/tiles.py" in message
    assert int(re.search(r"needs (\d+) bytes", message)[1]) > SHARED_MEMORY[86]


def test_heavy_spills_fail_with_name_and_figures():
    with pytest.raises(limits.BuildError) as error:
        compile_kernel(fwd_variant(80, Tile(64, 64, 64, 4, 1)), options={"maxnreg": 48})
    message = str(error.value)
    assert "fwd_f16_d64_sm80" in message and "aot/tiles.py" in message
    assert int(re.search(r"spills (\d+) bytes", message)[1]) > MAX_SPILL_BYTES


@triton.jit
def kernel_with_an_unknown_parameter(q, sharpness, BLOCK_M: tl.constexpr):
    tl.store(q, sharpness)


def test_a_parameter_that_nobody_supplies_fails_with_its_name_and_remedy():
    with pytest.raises(ValueError, match="'sharpness' is not in arguments.def.*FLASHTRI_ARG.sharpness"):
        compile_kernel(fwd_variant(), kernel=kernel_with_an_unknown_parameter)


def test_every_failure_of_a_build_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHTRI_CACHE", str(tmp_path))
    too_large = [fwd_variant(arch, Tile(64, 64, 64, 4, 8)) for arch in (86, 89)]
    with pytest.raises(limits.BuildError) as error:
        build.build(too_large, jobs=1)
    assert "fwd_f16_d64_sm86" in str(error.value) and "fwd_f16_d64_sm89" in str(error.value)


def test_an_architecture_that_is_not_in_the_table_is_refused():
    assert variants.parse_archs("90, 80") == (80, 90)
    with pytest.raises(ValueError, match="unknown architecture '75'"):
        variants.parse_archs("75")


def test_the_table_has_one_kernel_for_each_combination():
    table = variants.variants()
    names = [variant.name for variant in table]
    assert len(names) == len(set(names)) == (144 + 48) * len(variants.ARCHS) + 70
    for functions, masks, block_ds, reason in variants.EXCLUSIONS:
        assert reason and set(functions) <= set(variants.FUNCTIONS) and set(masks) <= set(variants.MASKS)
        assert set(block_ds) <= set(variants.BLOCK_DS)


def test_no_tile_falls_back_to_mma_sync():
    """wgmma and tcgen05 multiply at least 64 rows at a time; Triton takes mma.sync for fewer, and says nothing."""
    for variant in variants.variants((90, 100, 103)):
        if variant.function in (*decode.FUNCTIONS, "mask_keys"):
            continue  # bound by memory: few rows are what the former are for, the latter multiplies nothing
        rows = variant.tile.block_n if variant.function == "bwd_dkdv" else variant.tile.block_m
        assert rows >= 64, variant.name


def test_every_argument_is_some_kernels_and_every_parameter_an_argument():
    used = {name for function in variants.FUNCTIONS for name in run_time_params(kernel_of(function))}
    assert used == set(arguments.read())


def test_manifest_agrees_with_the_kernels_signatures(built):
    for facts, image in built:
        kernel = kernel_of(facts["function"])
        tile_class = hopper.HopperTile if facts["function"] in hopper.FUNCTIONS else Tile
        tile = tile_class(*(facts[field.name] for field in dataclasses.fields(tile_class)))
        assert facts["params"] == run_time_params(kernel), f"{facts['name']}: {REBUILD}"
        assert facts["constexprs"] == constexprs(kernel, facts["mask"], tile, facts["features"]), (
            f"{facts['name']}: {REBUILD}"
        )
        assert facts["image_size"] == len(image)


def test_every_cubin_takes_the_manifests_parameters(built):
    """Sizes by position, from the cubin's own KPARAM_INFO, and Triton's two scratch pointers at the end."""
    for facts, image in built:
        sizes = [size for name in facts["params"] for size in arguments.lookup(name, facts["function"]).sizes]
        assert cubin.read(image, facts["symbol"]).param_sizes == [*sizes, 8, 8], facts["name"]


def test_every_cubin_fits_its_architecture(built):
    assert [message for facts, _ in built if (message := limits.problem(facts))] == []


def test_facts_agree_with_cuobjdump(built, tmp_path):
    """One kernel of each architecture: our reading of the ELF against NVIDIA's."""
    for facts, image in {facts["arch"]: (facts, image) for facts, image in built}.values():
        path = tmp_path / "k.cubin"
        path.write_bytes(image)
        usage = subprocess.run([CUOBJDUMP, "-res-usage", path], capture_output=True, text=True, check=True)
        match = re.search(r"REG:(\d+) STACK:(\d+)", usage.stdout + usage.stderr)
        assert (facts["registers"], facts["spill_bytes"]) == (int(match[1]), int(match[2])), facts["name"]


def test_a_file_that_is_no_cubin_is_refused():
    with pytest.raises(ValueError, match="no ELF header"):
        cubin.read(b"PTX", "fwd")
    with pytest.raises(ValueError, match="no kernel 'bwd'"):
        cubin.read(compile_unchecked(fwd_variant()).image, "bwd")
