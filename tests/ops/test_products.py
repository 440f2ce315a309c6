"""Products by oneDNN and without it: equal, for strided operands as well, and in a thread of its own."""

import threading

import pytest
import torch

from pcdet.ops import products


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("shape", [(7, 5, 3), (256, 64, 96), (1, 1, 1)])
def test_equals_double_precision(onednn, shape, monkeypatch):
    if onednn and not products._has_onednn():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(products, "_has_onednn", lambda: onednn)
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner), torch.randn(columns, inner)
    wanted = (a.double() @ b.double().T).float()
    torch.testing.assert_close(products.product(a, b), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(products.product(a, b.T.contiguous().T), wanted, rtol=1e-4, atol=1e-5)
    found = []
    thread = threading.Thread(target=lambda: found.append(products.product(a, b)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-5)
