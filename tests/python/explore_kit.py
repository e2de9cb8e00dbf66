"""What tests of explore begin with, as fixtures of the files that import them."""
import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """The test runs in its own folder, whose modules Python finds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
