"""Weights of other origins: spconv 1's layout, wrappers, old files, safetensors, and what does not fit."""

import json
import logging
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from pcdet.layers.sparse import SparseConv2d, SparseConv3d, SparseConvTensor, SparseSequential, SubMConv3d
from pcdet.train_utils.checkpoint import DamagedCheckpoint, load_checkpoint
from pcdet.train_utils.checkpoint_forms import OPENPCDET_KEYS, WRITERS, form_of, left_out, plain
from pcdet.train_utils.weights import load_pretrained, load_weights, model_state_of, sparse_layouts
from pcdet.utils.logging import get_logger


@pytest.fixture
def log(caplog):
    logger = get_logger()
    before = logger.propagate, logger.level
    logger.propagate = True
    caplog.set_level(logging.INFO, logger=logger.name)
    yield caplog
    logger.propagate, logger.level = before


class Net(nn.Module):
    """Sparse kernels of both dimensions; ``alike`` has equal sizes along all axes."""

    def __init__(self, telling=True):
        super().__init__()
        torch.manual_seed(0)
        self.alike = SubMConv3d(3, 3, 3, indice_key="a")
        if telling:
            self.down = SparseConv3d(3, 8, (3, 1, 1))
            self.flat = SparseConv2d(8, 4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(4, 2)


def noise(model, seed=1):
    """Other weights of the same shapes."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=draw) if value.is_floating_point() else value + 5
        for name, value in model.state_dict().items()
    }


def in_spconv1(state):
    """As spconv 1 stores it: (*kernel, in, out)."""
    sparse = ("alike.weight", "down.weight", "flat.weight")
    return {n: v.permute(*range(1, v.ndim), 0).contiguous() if n in sparse else v for n, v in state.items()}


def require_equal(model, state):
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_kernels_of_spconv_1_are_turned_all_or_none(log):
    model, state = Net(), noise(Net())
    old = in_spconv1(state)
    assert old["down.weight"].shape == (3, 1, 1, 3, 8) and old["flat.weight"].shape == (3, 3, 8, 4)
    load_weights(model, {"model_state": old}, "old.pth")
    require_equal(model, state)
    assert "alike.weight may have either layout; taken as spconv 1's, as all other kernels" in log.text
    assert "3 sparse kernels are turned" in log.text


def test_kernels_of_spconv_2_stay(log):
    model, state = Net(), noise(Net())
    load_weights(model, {"model_state": state}, "new.pth")
    require_equal(model, state)
    assert "taken as spconv 2's, as all other kernels" in log.text and "turned" not in log.text


def test_where_nothing_tells_the_layout_a_warning_says_what_was_taken(log):
    model, state = Net(telling=False), noise(Net(telling=False))
    load_weights(model, {"model_state": state}, "new.pth")
    require_equal(model, state)
    assert "nothing tells whether alike.weight has spconv 1's or 2's layout; taken as 2's" in log.text


def test_a_file_with_both_layouts_is_read_kernel_by_kernel(log):
    model, state = Net(), noise(Net())
    mixed = {**state, "down.weight": in_spconv1(state)["down.weight"]}
    assert sparse_layouts(model, mixed) == (["down.weight"], ["flat.weight"], ["alike.weight"])
    load_weights(model, {"model_state": mixed}, "mixed.pth")
    require_equal(model, state)
    assert "nothing tells whether alike.weight" in log.text


def test_a_turned_kernel_gives_the_same_features():
    """Spconv 1's kernel [z, y, x, in, out] at offset (0, 0, 0) is what an input one cell before the output meets."""
    layer = SparseSequential(SubMConv3d(2, 3, 3, bias=False))
    old = torch.zeros(3, 3, 3, 2, 3)
    old[0, 1, 1] = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    load_weights(layer, {"0.weight": old}, "old.pth")
    sites = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]])
    out = layer(SparseConvTensor(torch.tensor([[1.0, 10], [100, 1000]]), sites, (2, 1, 1), 1)).features
    assert out.tolist() == [[0, 0, 0], [41, 52, 63]]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_a_wrapper_s_prefix_is_dropped_only_from_all_names(prefix):
    model, state = Net(), noise(Net())
    load_weights(model, {"model_state": {prefix + name: value for name, value in state.items()}}, "a.pth")
    require_equal(model, state)
    assert list(model_state_of({f"{prefix}a": torch.ones(1), "b": torch.ones(1)})) == [f"{prefix}a", "b"]


def theirs(state, seed=0):
    """A checkpoint as OpenPCDet writes it: ordered names, NumPy scalars among the optimizer's numbers."""
    group = {"lr": np.float64(0.003), "betas": (np.float64(0.95), 0.99), "weight_decay": 0, "params": [0]}
    moments = {0: {"step": torch.tensor(7.0), "exp_avg": torch.full((3,), float(seed))}}
    return {
        "epoch": 80,
        "it": np.int64(37120),
        "model_state": OrderedDict(state),
        "optimizer_state": {"state": moments, "param_groups": [group]},
        "version": "pcdet+0.6.0+8cacccec",
    }


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_openpcdet_in_either_container(tmp_path, zipped):
    model, state = Net(), noise(Net())
    torch.save(theirs(in_spconv1(state)), tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    load_weights(model, load_checkpoint(tmp_path / "a.pth"), tmp_path / "a.pth")
    require_equal(model, state)


def test_what_does_not_fit_is_listed_and_nothing_is_loaded():
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = noise(model)
    del state["norm.weight"]
    state["down.weight"] = state["down.weight"].transpose(0, 1)
    state["extra"] = torch.zeros(1)
    with pytest.raises(ValueError) as error:
        load_weights(model, {"model_state": state}, "a.pth")
    for line in (
        "a.pth does not fit the model",
        "missing in the file     norm.weight",
        "unknown to the model    extra",
        "other shape             down.weight: (3, 8, 1, 1, 3) in the file, (8, 3, 1, 1, 3) in the model",
    ):
        assert line in str(error.value)
    require_equal(model, before)


def test_pretrained_weights_may_lack_names_but_not_shapes(log):
    model, state = Net(), noise(Net())
    del state["head.weight"]
    state["roi_head.weight"] = torch.zeros(3)
    report = load_pretrained(model, {"model_state": state}, "a.pth")
    assert (report.missing, report.unexpected) == (["head.weight"], ["roi_head.weight"])
    assert "missing in the file     head.weight" in log.text and "unknown to the model    roi_head.weight" in log.text
    assert "loaded 12/13" in log.text
    state["head.bias"] = torch.zeros(3)
    with pytest.raises(ValueError, match="add --partial"):
        load_pretrained(model, {"model_state": state}, "a.pth")
    kept = model.head.bias.detach().clone()
    load_pretrained(model, {"model_state": state}, "a.pth", partial=True)
    assert torch.equal(model.head.bias, kept)


@pytest.mark.parametrize("empty", [{}, {"model_state": None, "epoch": 3}, {"model_state": {}}, {"epoch": 3}])
def test_files_without_weights_are_named(empty):
    with pytest.raises(ValueError, match=r"a\.pth holds no weights"):
        load_weights(Net(), empty, "a.pth")


@pytest.mark.parametrize("name", ["second", "pillarnet"])
def test_a_model_of_the_zoo_takes_kernels_of_spconv_1(name, shared, log):
    """Names and shapes as OpenPCDet has them; every 5-D kernel, and PillarNet's sparse 4-D ones, in the old layout."""
    from pcdet.models.build import build_model
    from pcdet.structures.dataset_info import DatasetInfo

    configs = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    shapes = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())["state_dicts"]
    shapes = next(table for key, table in shapes.items() if key.removesuffix(".yaml").endswith(f"/{name}"))
    types = shapes.pop("__dtypes__")
    names = ("Car", "Pedestrian", "Cyclist")
    area = (0.0, -40.0, -3.0, 70.4, 40.0, 1.0)
    info = DatasetInfo(names, ("x", "y", "z", "intensity"), area, (0.05, 0.05, 0.1), (1408, 1600, 40), 5)
    model = build_model(configs[f"kitti_models/{name}.yaml"]["MODEL"], info)
    state = {
        key: torch.arange(float(np.prod(shape))).view(shape) if key not in types else torch.zeros(shape).long()
        for key, shape in shapes.items()
    }
    sparse = [
        key
        for key, value in state.items()
        if value.ndim == 5 or (value.ndim == 4 and value.shape[1] == 3 < value.shape[3])
    ]
    old = {k: v.permute(*range(1, v.ndim), 0).contiguous() if k in sparse else v for k, v in state.items()}
    load_weights(model, {"model_state": old}, "old.pth")
    require_equal(model, state)
    assert f"{len(sparse)} sparse kernels are turned" in log.text and len(sparse) > 10


def same(a, b):
    """Equal values and types, tensors to the bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_openpcdet_s_form_holds_its_keys_and_plain_numbers(tmp_path):
    checkpoint = {**theirs(noise(Net())), "seed": 3, "step": 2}
    WRITERS["openpcdet"](tmp_path / "a.pth", checkpoint)
    found = torch.load(tmp_path / "a.pth", weights_only=True)  # without NumPy's numbers being admitted
    assert tuple(found) == OPENPCDET_KEYS
    assert same(found, plain({key: checkpoint[key] for key in OPENPCDET_KEYS}))
    assert type(found["optimizer_state"]["param_groups"][0]["lr"]) is float
    assert left_out("openpcdet", checkpoint) == ["seed", "step"]


def test_our_form_keeps_everything(tmp_path):
    checkpoint = {**theirs(noise(Net())), "seed": 3, "config": "A: 1"}
    WRITERS["pcdet"](tmp_path / "a.pth", checkpoint)
    assert same(torch.load(tmp_path / "a.pth", weights_only=True), plain(checkpoint))
    assert left_out("pcdet", checkpoint) == []


def test_safetensors_keep_weights_to_the_bit(tmp_path):
    pytest.importorskip("safetensors")
    odd = {
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "half": torch.randn(3, 2).half(),
        "brain": torch.randn(2).bfloat16(),
        "view": torch.arange(6).view(2, 3).T,
        "count": torch.tensor(7),
        "none": torch.zeros(0, 3),
    }
    odd["twin"] = odd["view"]
    checkpoint = {**theirs(odd), "config": "A: 1"}
    WRITERS["safetensors"](tmp_path / "a.safetensors", checkpoint)
    found = load_checkpoint(tmp_path / "a.safetensors")
    assert (found["epoch"], found["it"], found["version"], found["config"]) == (
        80,
        37120,
        checkpoint["version"],
        "A: 1",
    )
    assert found["model_state"].keys() == odd.keys()
    for name, value in odd.items():
        back = found["model_state"][name]
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert torch.equal(back.flatten().view(torch.uint8), value.flatten().view(torch.uint8))
    assert left_out("safetensors", checkpoint) == ["optimizer_state"]


def test_damaged_safetensors_are_named(tmp_path):
    pytest.importorskip("safetensors")
    (tmp_path / "a.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"a\.safetensors cannot be read as a safetensors file"):
        load_checkpoint(tmp_path / "a.safetensors")
    torch.save({}, tmp_path / "b.pth")
    (tmp_path / "b.pth").write_bytes((tmp_path / "b.pth").read_bytes()[:40])
    with pytest.raises(DamagedCheckpoint):
        load_checkpoint(tmp_path / "b.pth")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ValueError, match=r"pip install 'pcdet\[safetensors\]'"):
        WRITERS["safetensors"](tmp_path / "a.safetensors", {"a": torch.ones(1)})


@pytest.mark.parametrize(
    "name, wanted, form",
    [
        ("a.safetensors", None, "safetensors"),
        ("a.pth", "pcdet", "pcdet"),
        ("a.pth", "openpcdet", "openpcdet"),
        ("a.pth", None, "give --to"),
        ("a.pth", "safetensors", "does not go with the suffix '.pth'"),
        ("a.safetensors", "pcdet", "does not go with the suffix"),
    ],
)
def test_the_form_by_suffix(name, wanted, form, tmp_path):
    if form in WRITERS:
        assert form_of(tmp_path / name, wanted) == form
    else:
        with pytest.raises(ValueError, match=form):
            form_of(tmp_path / name, wanted)
