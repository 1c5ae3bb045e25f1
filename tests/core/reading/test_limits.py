"""Files of some kilobytes that want gigabytes, read in a process of its own: how much memory it took at most."""

import os
import subprocess
import sys

LIMIT = 2**26

READING = """
import io, resource, struct, sys, tarfile, zipfile, zlib
from pathlib import Path
import numpy as np, onnx, torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from scipy.io import savemat
from gdws import data
from gdws.core.reading.weights import read_weights
from gdws.deploy.runtimes import OnnxRuntime
from gdws.deploy.onnx.straight_through import StraightThrough
from gdws.core.errors import GdwsError

big = 2**28  # bytes that each file claims: four times the limit
place = Path(sys.argv[1])
for folder in ("images/a", "cifar"):
    (place / folder).mkdir(parents=True)
chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
header = struct.pack(">IIBBBBB", 1, 60000, 8, 2, 0, 0, 0)
lines = zlib.compress(bytes(4 * 60000))
chunks = chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")
(place / "images/a/x.png").write_bytes(b"\\x89PNG\\r\\n\\x1a\\n" + chunks)
with zipfile.ZipFile(place / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as member:
    np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (big // 3072, 32, 32, 3)})
    for _ in range(big // 3072):
        member.write(bytes(3072))
class Zeros(io.RawIOBase):
    def read(self, count=-1):
        return bytes(count)
with tarfile.open(place / "cifar/cifar-10-python.tar.gz", "w:gz") as archive:
    info = tarfile.TarInfo("cifar-10-batches-py/test_batch")
    info.size = big
    archive.addfile(info, Zeros())
torch.save({"head": torch.zeros(2**16).expand(big // 2**18, 2**16)}, place / "view.pt")
with zipfile.ZipFile(place / "packed.pt", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("w/data/0", "w") as member:
    for _ in range(big // 2**20):
        member.write(bytes(2**20))
one, shape = numpy_helper.from_array(np.ones(1, np.float32), "one"), numpy_helper.from_array(np.array([big // 4]), "shape")
nodes = [helper.make_node("Expand", ["one", "shape"], ["grown"]), helper.make_node("ReduceMax", ["grown"], ["max"], keepdims=0)]
nodes += [helper.make_node("Flatten", ["images"], ["flat"]), helper.make_node("Add", ["flat", "max"], ["logits"])]
sizes = {"images": [1, 3, 8, 8], "logits": [1, 192]}
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, own) for name, own in sizes.items()]
graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [one, shape])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), place / "x.onnx")

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
readers = [lambda: list(data.load(f"imagefolder:{place}/images", "test"))]
readers += [lambda: data.load(f"npz:{place}/x.npz", "test", labels=False)]
readers += [lambda: data.load(f"cifar10:{place}/cifar", "test")]
readers += [lambda name=name: read_weights(place / name) for name in ("view.pt", "packed.pt")]
readers += [lambda: OnnxRuntime(place / "x.onnx"), lambda: StraightThrough(place / "x.onnx")]
for reader in readers:
    try:
        reader()
        print("read")
    except GdwsError as error:
        print("would take" in str(error) and "GDWS_MAX_BYTES" in str(error) or error)
print(max(path.stat().st_size for path in place.rglob("*") if path.is_file()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_no_file_takes_more_memory_than_the_limit(tmp_path):
    environment = {**os.environ, "GDWS_MAX_BYTES": str(LIMIT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READING, str(tmp_path)]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    *told, largest, kilobytes = shown.stdout.splitlines()
    assert told == ["True"] * 7, shown
    assert int(largest) < 10**6
    assert int(kilobytes) * 1024 < 2 * LIMIT
