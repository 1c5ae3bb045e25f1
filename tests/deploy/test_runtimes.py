"""The engines keep to themselves what they are used for."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

USE = """
import sys
events = []
watched = ("os.fork", "os.posix_spawn", "subprocess.Popen", "socket.getaddrinfo", "socket.gethostbyname", "socket.connect")
sys.addaudithook(lambda event, _: events.append(event) if event in watched else None)
import torch
import gdws
network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 10)).eval()
images = torch.rand(8, 3, 8, 8)
for engine in ("openvino", "onnxruntime"):
    for precision in ("float32", "int8"):
        gdws.compile(network, engine, example=images[:1], precision=precision, calibration=images)(images)
sys.exit(f"{events}" if events else 0)
"""


def test_engines_reach_no_network_start_no_process_and_write_nothing_home(tmp_path):
    """Bug: OpenVINO forked a process that looked up a host; it and ONNX Runtime kept a number for the user in HOME."""
    if not (find_spec("onnxruntime") and find_spec("nncf")):  # importing them here would be what is tested
        pytest.skip("needs the engines")
    environment = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name and name != "NNCF_CI"}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "CI": ""}
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []
