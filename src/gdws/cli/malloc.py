"""What the process does with memory that tensors leave."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Settings of glibc's mallopt: freed memory at the end of the heap that is given back; the least that is mapped on its own."""
LARGEST_RECYCLED = 2**25
"""Bytes: the most that glibc takes for the second."""


def keep_freed_memory() -> None:
    """Let the next tensors have the memory that others left, where the C library is glibc.

    It would go back to the system, which hands it out again page by page, each cleared first: a pass of a network maps some
    hundred megabytes anew. A command owns its process, so it may decide this; the library leaves it alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, ctypes.c_int(2**31 - 1))
        mallopt(MMAP_THRESHOLD, LARGEST_RECYCLED)
