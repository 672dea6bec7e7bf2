import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", choices=("cpu", "cuda"), help="where the op's tests run")


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    chosen = torch.device(request.config.getoption("--device"))
    assert chosen.type == "cpu" or torch.cuda.is_available(), "--device cuda needs a CUDA device"
    return chosen
