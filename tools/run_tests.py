"""Runs what CI runs and ends with one line of counts; exits with 1 where anything failed or no test ran.

Usage:
    python tools/run_tests.py            lint, tests, and the tests that replay kernels in Triton's interpreter
    python tools/run_tests.py lint       one or more stages by name
    python tools/run_tests.py gpu        the problem table on a CUDA device, through the cubins
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
FORMATTED = ["csrc/**/*.cpp", "csrc/**/*.h", "examples/**/*.cpp", "examples/**/*.h"]


def main():
    names = sys.argv[1:] or ["lint", "tests", "interpreter"]
    REPORTS.mkdir(parents=True, exist_ok=True)
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    summary = []
    for name in names:
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        outcome = STAGES[name]()
        for key in counts:
            counts[key] += outcome[key]
        figures = ", ".join(f"{outcome[key]} {key}" for key in counts)
        summary.append(f"{name:12} {figures}  ({time.monotonic() - start:.0f} s)")
    print("\n== summary", *summary, sep="\n")
    print(", ".join(f"{count} {key}" for key, count in counts.items()), flush=True)
    sys.exit(1 if counts["failed"] or not counts["passed"] else 0)


def lint() -> dict[str, int]:
    sources = sorted(str(path.relative_to(ROOT)) for pattern in FORMATTED for path in ROOT.glob(pattern))
    checks = [
        [sys.executable, "-m", "ruff", "check", "."],
        [sys.executable, "-m", "ruff", "format", "--check", "."],
        [str(Path(sys.executable).parent / "clang-format"), "--dry-run", "-Werror", *sources],
    ]
    failed = 0
    for check in checks:
        print("$", *check[:5], "..." if len(check) > 5 else "", flush=True)
        failed += subprocess.run(check, cwd=ROOT).returncode != 0
    if failed:
        print("`make format` mends what can be mended by itself.")
    return {"passed": len(checks) - failed, "failed": failed, "skipped": 0}


def tests() -> dict[str, int]:
    return pytest("tests", ["tests", "--ignore=tests/interpreter", "--ignore=tests/gpu", "-m", "not gpu"])


def interpreter() -> dict[str, int]:
    # Triton decides at import whether its kernels are interpreted, hence a process of its own.
    return pytest("interpreter", ["tests/interpreter"], TRITON_INTERPRET="1")


def gpu() -> dict[str, int]:
    tests = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/test_op*.py"))
    return pytest("gpu", [*tests, "tests/gpu", "--device=cuda"], workers=1)


STAGES = {stage.__name__: stage for stage in (lint, tests, interpreter, gpu)}


def pytest(name: str, arguments: list[str], workers: int | None = None, **environment: str) -> dict[str, int]:
    """Runs pytest; a run that collected nothing or broke off counts as one failure."""
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    workers = workers or os.cpu_count() or 1
    # The environment's own tools come first (cmake for the C++ example).
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if workers > 1:
        environment["OMP_NUM_THREADS"] = "1"  # each worker runs torch, whose own threads would only compete
    parallel = ["-n", str(workers)] if workers > 1 else []
    command = [sys.executable, "-m", "pytest", *arguments, *parallel, f"--junitxml={report}"]
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode
    passed = failed = skipped = 0
    if report.is_file():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            failed += int(suite.get("failures")) + int(suite.get("errors"))
            skipped += int(suite.get("skipped"))
            passed += int(suite.get("tests")) - int(suite.get("failures")) - int(suite.get("errors"))
            passed -= int(suite.get("skipped"))
    if status and not failed:
        failed = 1
    return {"passed": passed, "failed": failed, "skipped": skipped}


if __name__ == "__main__":
    main()
