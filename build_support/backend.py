"""The PEP 517 backend: setuptools, plus the requirements of requirements/build.txt and the target's torch.

The hooks import setuptools late, since pip asks get_requires_for_build_* before it has installed anything.
"""

from pathlib import Path

from build_support import torches

ROOT = Path(__file__).resolve().parent.parent


def build_requirements() -> list[str]:
    """The lines of requirements/build.txt that are requirements."""
    lines = (ROOT / "requirements" / "build.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def get_requires_for_build_sdist(config_settings=None):
    return [line for line in build_requirements() if line.startswith("setuptools")]


def get_requires_for_build_wheel(config_settings=None):
    versions = torches.required_versions()
    if not versions:
        torches.find()  # fail before pip fetches anything
    return build_requirements() + [f"torch=={version}" for version in versions]


def _setuptools(hook, *arguments):
    from setuptools import build_meta

    return getattr(build_meta, hook)(*arguments)


def build_sdist(sdist_directory, config_settings=None):
    return _setuptools("build_sdist", sdist_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _setuptools("build_wheel", wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return _setuptools("prepare_metadata_for_build_wheel", metadata_directory, config_settings)


get_requires_for_build_editable = get_requires_for_build_wheel


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _setuptools("build_editable", wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    return _setuptools("prepare_metadata_for_build_editable", metadata_directory, config_settings)
