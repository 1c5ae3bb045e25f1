"""What the process does with memory that tensors leave."""

import platform
import subprocess
import sys

import pytest

GLIBC, VERSION = platform.libc_ver()
MIB = 2**20

TENSOR = """
import ctypes, torch
from gdws.cli.malloc import keep_freed_memory
{before}
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
ask = ctypes.CDLL(None).mallinfo2
ask.restype = Info
start = ask()
tensor = torch.ones(30 * 2**18)  # 30 MiB
held = ask()
del tensor
left = ask()
print(held.hblkhd - start.hblkhd, left.arena - start.arena)
"""
"""hblkhd are bytes that were mapped on their own, arena those of the heap."""


@pytest.mark.skipif(GLIBC != "glibc" or tuple(map(int, VERSION.split("."))) < (2, 33), reason="needs mallinfo2 of glibc 2.33")
def test_memory_that_was_freed_stays_for_the_next_tensor():
    found = {}
    for before in ("", "keep_freed_memory()"):
        done = subprocess.run([sys.executable, "-c", TENSOR.format(before=before)], capture_output=True, text=True, check=True)
        found[before] = [int(word) for word in done.stdout.split()]
    (mapped, grown), (mapped_by_us, grown_by_us) = found.values()
    assert (mapped > 29 * MIB, grown < MIB) == (True, True)  # it goes back to the system
    assert (mapped_by_us, grown_by_us > 20 * MIB) == (0, True)
