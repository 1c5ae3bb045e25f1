import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors on several threads wait for each other far longer than they compute, most of all on a shared machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def embedded_file(tmp_path_factory):
    """The embedded model as an ONNX file; exports take seconds."""
    from test_export import images

    from gdws import export, models

    path = tmp_path_factory.mktemp("embedded") / "embedded.onnx"
    export.to_onnx(models.embedded(), path, images(1))
    return path


@pytest.fixture(scope="session")
def factored_file(tmp_path_factory):
    """The model of test_export.factored as an ONNX file."""
    from test_export import factored, images

    from gdws import export

    path = tmp_path_factory.mktemp("factored") / "factored.onnx"
    export.to_onnx(factored(), path, images(1))
    return path
