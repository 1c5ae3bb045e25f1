"""Keeps the campaign from the machine that it runs on: whatever gdws does wrong, it can only write into the campaign's folder.

It tries what must not be written over, as root too, and what it looks for is that gdws does so all the same. As root, all
mounts but that folder are read-only for it, in a mount namespace of its own; without that it does not run. As another user it
is kept from the system by its rights, and its cases name no path to write to but in their own folders.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

NEW_MOUNTS = 0x00020000
LEFT = ("/proc",)
"""What stays as it is: a process notes its own limits there."""


class Unconfined(SystemExit):
    """The machine could be harmed, so nothing is run."""


def confine(folder: Path) -> None:
    """From here on this process and its children can write into `folder` only."""
    if os.geteuid() != 0:
        return
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS):
        raise Unconfined("root, and no mount namespace of its own: run the campaign as another user")
    _mount("--make-rprivate", "/")
    _mount("--bind", str(folder), str(folder))
    for place in dict.fromkeys(_mounts()):
        inside = place == str(folder) or place.startswith(f"{folder}/")
        if not inside and not any(place == left or place.startswith(f"{left}/") for left in LEFT):
            _mount("-o", "remount,bind,ro", place)
    for place in ("/", "/dev", str(folder.parent), str(Path(__file__).parent), str(Path.home())):
        try:
            os.close(os.open(f"{place}/.chaos", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            continue
        os.unlink(f"{place}/.chaos")
        raise Unconfined(f"root, and {place} can be written to: run the campaign as another user")


def _mounts() -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1].encode().decode("unicode_escape") for line in lines]


def _mount(*arguments: str) -> None:
    """A mount that cannot be changed is found out by the trial at the end."""
    subprocess.run(["mount", *arguments], capture_output=True, check=False)
