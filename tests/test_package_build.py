"""How the wheel is built: which torch it is for, what pip is told, what an sdist holds."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from build_support import backend, torches

ROOT = Path(__file__).resolve().parent.parent


def fake_torch(folder: Path, version: str) -> Path:
    (folder / "torch/include/ATen").mkdir(parents=True)
    (folder / "torch/version.py").write_text(f"__version__ = '{version}'\n")
    return folder


def minors(*numbers):
    return [torches.Torch(Path("/nowhere"), f"{number}.0+cpu") for number in numbers]


@pytest.mark.parametrize(
    "built_for, expected",
    [
        (["2.13"], "torch ==2.13.*"),
        (["2.12", "2.13"], "torch >=2.12,<2.14"),
        (["2.11", "2.13"], "torch >=2.11,!=2.12.*,<2.14"),
    ],
)
def test_requirement_is_the_minors_built_for(built_for, expected):
    assert torches.requires_dist(minors(*built_for)) == expected


def test_finds_the_torch_of_this_environment(monkeypatch):
    monkeypatch.delenv(torches.VARIABLE, raising=False)
    assert [(found.folder, found.version) for found in torches.find()] == [
        (Path(torch.__file__).parent.resolve(), str(torch.__version__))
    ]


def test_finds_it_although_pip_hides_it(monkeypatch, tmp_path):
    """pip's build isolation runs the same interpreter, with these variables."""
    monkeypatch.delenv(torches.VARIABLE, raising=False)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, sysconfig\nsys.path = [p for p in sys.path if 'site-packages' not in p]\n"
    )
    code = (
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('torch') is None\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from build_support import torches\n"
        "print(torches.find()[0].version)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(torch.__version__), done.stderr


def test_several_folders_give_one_wheel_for_several_minors(monkeypatch, tmp_path):
    newer, older = fake_torch(tmp_path / "a", "2.13.0+cpu"), fake_torch(tmp_path / "b", "2.11.1")
    monkeypatch.setenv(torches.VARIABLE, f"{newer}:{older / 'torch'}")
    assert [found.minor for found in torches.find()] == ["2.11", "2.13"]


def test_a_version_becomes_a_build_requirement(monkeypatch):
    monkeypatch.setenv(torches.VARIABLE, "2.13.0")
    assert backend.get_requires_for_build_wheel()[-1] == "torch==2.13.0"
    monkeypatch.delenv(torches.VARIABLE)
    requirements = backend.get_requires_for_build_wheel()
    assert not [line for line in requirements if line.startswith("torch")]
    assert all("==" in line for line in requirements)


@pytest.mark.parametrize(
    "value, message",
    [
        ("/nowhere", "FLASHTRI_TORCH names /nowhere, which holds no torch"),
        ("2.1.0", "FLASHTRI_TORCH asks for torch 2.1.0, which is not installed here"),
    ],
)
def test_no_torch_says_what_to_do(monkeypatch, value, message):
    monkeypatch.setenv(torches.VARIABLE, value)
    with pytest.raises(torches.TorchNotFound, match=message) as caught:
        torches.find()
    assert "install torch in the target environment first" in str(caught.value)


def test_a_torch_too_old_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(torches.VARIABLE, str(fake_torch(tmp_path, "2.10.0")))
    with pytest.raises(torches.TorchNotFound, match=r"needs torch >= 2.11; found 2.10.0 in"):
        torches.find()


def test_sdist_holds_everything_the_build_reads(tmp_path):
    def not_sources(folder, names):
        return [name for name in names if name.startswith(".") or name.endswith(".so") or name in ("build", "dist")]

    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=not_sources)
    code = f"from build_support import backend; print(backend.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.splitlines()[-1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        metadata = archive.extractfile(
            next(m for m in archive if m.name.count("/") == 1 and m.name.endswith("PKG-INFO"))
        )
        assert "Requires-Dist: torch>=2.11\n" in metadata.read().decode()
    read = [source / name for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE")]
    for folder in ("aot", "build_support", "csrc", "python", "requirements", "triton_src"):
        read += [path for path in (source / folder).rglob("*") if path.is_file() and "egg-info" not in str(path)]
    missing = {str(path.relative_to(source)) for path in read if path.suffix != ".pyc"} - names
    assert not missing
