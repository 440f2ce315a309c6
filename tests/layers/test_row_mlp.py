import pytest
import torch
from torch import nn

from pcdet.layers.row_mlp import RowConv2d, RowMLP


def convolutions_like(mlp):
    """The same layers as torch's own, over (B, C, H, W)."""
    layers = []
    for module in mlp:
        if isinstance(module, RowConv2d):
            layers.append(nn.Conv2d(module.in_channels, module.out_channels, 1, bias=False))
        else:
            layers.append(nn.ReLU() if isinstance(module, nn.ReLU) else nn.BatchNorm2d(module.num_features))
    twin = nn.Sequential(*layers)
    twin.load_state_dict(mlp.state_dict())
    return twin


def test_names_and_shapes_are_those_of_convolutions():
    state = RowMLP([4, 8, 6]).state_dict()
    assert {name: tuple(v.shape) for name, v in state.items() if name.endswith("weight")} == {
        "0.weight": (8, 4, 1, 1),
        "1.weight": (8,),
        "3.weight": (6, 8, 1, 1),
        "4.weight": (6,),
    }
    assert "0.bias" not in state


@pytest.mark.parametrize("training", [True, False])
def test_rows_equal_an_image(training):
    torch.manual_seed(0)
    mlp = RowMLP([4, 8, 6])
    twin = convolutions_like(mlp)
    mlp.train(training), twin.train(training)
    image = torch.randn(2, 4, 5, 3)  # (B, C, H, W)
    rows = image.permute(0, 2, 3, 1).reshape(-1, 4).requires_grad_()  # (B * H * W, C)
    image.requires_grad_()
    out, expected = mlp(rows), twin(image)
    torch.testing.assert_close(out.view(2, 5, 3, 6).permute(0, 3, 1, 2), expected)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (out * weight.permute(0, 2, 3, 1).reshape(-1, 6)).sum().backward()
    torch.testing.assert_close(rows.grad.view(2, 5, 3, 4).permute(0, 3, 1, 2), image.grad, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(mlp.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mlp[1].running_var, twin[1].running_var)


def test_first_and_rest_make_the_whole():
    mlp = RowMLP([4, 8, 6]).eval()
    rows = torch.randn(7, 4)
    torch.testing.assert_close(mlp.rest(mlp.first(rows)), mlp(rows))


@pytest.mark.parametrize("count", [0, 1])
def test_few_rows_leave_the_statistics_finite(count):
    mlp = RowMLP([4, 8, 6])
    out = mlp(torch.randn(count, 4))
    out.sum().backward()
    assert out.shape == (count, 6)
    assert all(torch.isfinite(v).all() for v in mlp.state_dict().values())
    assert all(torch.isfinite(p.grad).all() for p in mlp.parameters())
