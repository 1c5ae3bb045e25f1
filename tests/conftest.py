import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors on several threads wait for each other far longer than they compute, most of all on a shared machine."""
    torch.set_num_threads(1)
