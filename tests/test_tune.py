"""Tuning: which candidates are compiled in, that unfit ones are left out, and what is kept of a measurement."""

import csv

from aot import build, tiles, tune, variants
from aot.tiles import Tile


def test_candidates_stand_beside_the_kernels_asked_for(monkeypatch):
    monkeypatch.delenv("FLASHTRI_TUNE", raising=False)
    table = variants.variants((90,))
    monkeypatch.setenv("FLASHTRI_TUNE", "^bwd_dq_bf16_d64_sm")
    more = variants.variants((90,))
    assert more[: len(table)] == table, "today's kernels come first, so the planner takes them"
    assert len({v.name for v in more}) == len(more)
    assert {v.function for v in more[len(table) :]} == {"bwd_dq"}
    today = next(v.tile for v in table if v.name == "bwd_dq_bf16_d64_sm90")
    for tile in (v.tile for v in more[len(table) :]):
        changed = [name for name in vars(tile) if getattr(tile, name) != getattr(today, name)]
        assert len(changed) == 1


def test_a_candidate_that_does_not_fit_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHTRI_CACHE", str(tmp_path))
    fits = variants.Variant("fwd", "f16", "none", 86, Tile(64, 32, 32, 4, 2))
    too_large = variants.Variant("fwd", "f16", "none", 86, Tile(64, 64, 64, 4, 8), is_candidate=True)
    refused = variants.Variant("fwd", "f16", "none", 86, Tile(48, 32, 32, 4, 2), is_candidate=True)
    assert [facts["name"] for facts, _ in build.build([fits, too_large, refused], jobs=2)] == [fits.name]


def measured(folder, *rows):
    path = folder / "tune.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["case", "implementation", "p50", "note", "device", "date"])
        writer.writerows([*row, "a GPU", "2026-01-02 03:04"] for row in rows)
    return path


def test_the_fastest_within_the_bound_is_kept_with_its_figures(monkeypatch, tmp_path):
    found = measured(
        tmp_path,
        ("fwd masked 64 90", "today", "200", ""),
        ("fwd masked 64 90", "faster", "240", "64 128 64 8 2"),
        ("fwd masked 64 90", "slower", "100", "128 64 64 8 2"),
        ("fwd masked 64 90", "wrong", "", "out is off by 1"),
        ("bwd_dq plain 64 90", "today", "200", ""),
        ("bwd_dq plain 64 90", "as fast", "201", "64 32 64 4 2"),
    )
    target = tmp_path / "tuned.csv"
    (row,) = tune.keep_fastest(found, target)
    assert (row["before"], row["tflops"], row["device"], row["date"]) == ("200", "240", "a GPU", "2026-01-02")
    monkeypatch.setattr(tiles, "TUNED", target)
    tiles.tuned.cache_clear()
    try:
        assert tiles.tile("fwd", 64, "f32", 90) == Tile(64, 128, 64, 8, 2)
        assert tiles.tile("fwd", 64, "none", 90) != Tile(64, 128, 64, 8, 2)
        assert tiles.tile("fwd", 64, "f32", 80) != Tile(64, 128, 64, 8, 2)
        # Measured again, another problem: what was kept before stays.
        again = measured(tmp_path, ("bwd_dq plain 64 90", "today", "200", ""),
                         ("bwd_dq plain 64 90", "faster", "300", "64 32 64 4 2"))  # fmt: skip
        tune.keep_fastest(again, target)
        tiles.tuned.cache_clear()
        assert tiles.tile("fwd", 64, "f32", 90) == Tile(64, 128, 64, 8, 2)
        assert tiles.tile("bwd_dq", 64, "none", 90) == Tile(64, 32, 64, 4, 2)
    finally:
        tiles.tuned.cache_clear()
