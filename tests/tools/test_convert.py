"""tools/convert.py: there and back to the bit, checks against a model, files that are not overwritten."""

import numpy as np
import pytest
import torch

from pcdet.models.build import build_model
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.train_utils.checkpoint import load_checkpoint, save_checkpoint
from pcdet.train_utils.checkpoint_forms import WRITERS

SECOND = "cfgs/kitti_models/second.yaml"


@pytest.fixture
def convert(tools):
    return tools("convert")


def checkpoint(**more):
    draw = torch.Generator().manual_seed(0)
    weights = {"vfe.weight": torch.randn(3, 4, generator=draw), "global_step": torch.tensor([12])}
    group = {"lr": np.float64(0.003), "betas": (0.95, 0.99), "params": [0]}
    state = {"state": {0: {"exp_avg": torch.randn(3, 4, generator=draw)}}, "param_groups": [group]}
    run = {"epoch": 3, "it": 12, "model_state": weights, "optimizer_state": state, "version": "pcdet+0.6.0"}
    return run | more


def equal_weights(path, weights):
    found = load_checkpoint(path)["model_state"]
    return found.keys() == weights.keys() and all(
        found[name].dtype == value.dtype and torch.equal(found[name], value) for name, value in weights.items()
    )


def test_round_trips_keep_weights_to_the_bit(convert, tmp_path, capsys):
    pytest.importorskip("safetensors")
    ours = checkpoint(seed=7, step=2)
    torch.save(ours, tmp_path / "ours.pth")
    steps = [
        ("ours.pth", "theirs.pth", ["--to", "openpcdet"]),
        ("theirs.pth", "a.safetensors", []),
        ("a.safetensors", "back.pth", ["--to", "pcdet"]),
    ]
    for source, target, options in steps:
        assert convert([str(tmp_path / source), str(tmp_path / target), *options]) == 0
        assert equal_weights(tmp_path / target, ours["model_state"])
    out = capsys.readouterr().out
    assert "Left out, for this form has no place for it: seed, step" in out
    assert "Left out, for this form has no place for it: optimizer_state" in out
    back = load_checkpoint(tmp_path / "back.pth")
    assert (back["epoch"], back["it"], back["optimizer_state"]) == (3, 12, None)

    theirs = torch.load(tmp_path / "theirs.pth", weights_only=True)
    assert list(theirs) == ["epoch", "it", "model_state", "optimizer_state", "version"]
    moments = theirs["optimizer_state"]["state"][0]["exp_avg"]
    assert torch.equal(moments, ours["optimizer_state"]["state"][0]["exp_avg"])


def test_the_help_names_every_form(convert, capsys):
    with pytest.raises(SystemExit):
        convert(["--help"])
    shown = capsys.readouterr().out
    assert f"{{{','.join(WRITERS)}}}" in shown and "optimizer state" in shown


def test_weights_alone_become_a_checkpoint(convert, tmp_path):
    weights = checkpoint()["model_state"]
    torch.save({f"module.{name}": value for name, value in weights.items()}, tmp_path / "bare.pth")
    assert convert([str(tmp_path / "bare.pth"), str(tmp_path / "new" / "a.pth"), "--to", "openpcdet"]) == 0
    assert equal_weights(tmp_path / "new" / "a.pth", weights)


def test_a_file_is_overwritten_only_by_force(convert, tmp_path):
    save_checkpoint(tmp_path / "a.pth", {"model_state": {"w": torch.zeros(1)}})
    save_checkpoint(tmp_path / "b.pth", {"model_state": {"w": torch.ones(1)}})
    given = [str(tmp_path / "a.pth"), str(tmp_path / "b.pth"), "--to", "pcdet"]
    with pytest.raises(ValueError, match=r"b\.pth exists; add --force"):
        convert(given)
    assert equal_weights(tmp_path / "b.pth", {"w": torch.ones(1)})
    assert convert([*given, "--force"]) == 0
    assert equal_weights(tmp_path / "b.pth", {"w": torch.zeros(1)})
    assert convert([given[0], given[0], "--to", "openpcdet", "--force"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pth", "b.pth"]


def test_other_files_are_named(convert, tmp_path):
    out = str(tmp_path / "out.pth")
    with pytest.raises(FileNotFoundError, match=r"missing\.pth does not exist"):
        convert([str(tmp_path / "missing.pth"), out, "--to", "pcdet"])
    (tmp_path / "noise.pth").write_bytes(b"\x00\x01no")
    with pytest.raises(ValueError, match=r"noise\.pth cannot be read as a checkpoint"):
        convert([str(tmp_path / "noise.pth"), out, "--to", "pcdet"])
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(ValueError, match=r"none\.pth holds no weights: its keys are epoch"):
        convert([str(tmp_path / "none.pth"), out, "--to", "pcdet"])
    with pytest.raises(ValueError, match="give --to"):
        convert([str(tmp_path / "none.pth"), out])
    assert not (tmp_path / "out.pth").exists()


@pytest.fixture(scope="module")
def second(root):
    """The weights of SECOND, and the file of spconv 1 that would hold them."""
    import yaml

    block = yaml.safe_load((root / SECOND).read_text())["MODEL"]
    area = (0.0, -40.0, -3.0, 70.4, 40.0, 1.0)
    names = ("Car", "Pedestrian", "Cyclist")
    info = DatasetInfo(names, ("x", "y", "z", "intensity"), area, (0.05, 0.05, 0.1), (1408, 1600, 40), 5)
    state = build_model(block, info).state_dict()
    return state, {n: v.permute(1, 2, 3, 4, 0).contiguous() if v.ndim == 5 else v for n, v in state.items()}


def test_with_a_configuration_kernels_are_turned_and_checked(convert, second, tmp_path, capsys):
    state, old = second
    torch.save(checkpoint(model_state=old), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    given = [str(tmp_path / "old.pth"), str(tmp_path / "new.pth"), "--to", "openpcdet", "--cfg_file", SECOND]
    assert convert(given) == 0
    assert equal_weights(tmp_path / "new.pth", state)
    assert load_checkpoint(tmp_path / "new.pth")["optimizer_state"] is None
    out = capsys.readouterr().out
    assert "12 sparse kernels are turned" in out and "the optimizer state is left out" in out
    assert f"all {len(state)} weights fit" in out

    assert convert([*given[:1], str(tmp_path / "as_it_is.pth"), "--to", "pcdet"]) == 0
    assert equal_weights(tmp_path / "as_it_is.pth", old)


def test_with_a_configuration_other_weights_are_refused(convert, second, tmp_path):
    state = {name: value for name, value in second[0].items() if name != "dense_head.conv_cls.bias"}
    torch.save({"model_state": state}, tmp_path / "a.pth")
    given = [str(tmp_path / "a.pth"), str(tmp_path / "b.pth"), "--to", "pcdet", "--cfg_file", SECOND]
    with pytest.raises(ValueError, match=r"nothing written.\n  missing in the file +dense_head.conv_cls.bias"):
        convert(given)
    assert not (tmp_path / "b.pth").exists()


@pytest.mark.parametrize(
    "name, others, message", [("train", ["--ckpt", "a.pth"], "must fit entirely"), ("test", [], "or with --ckpt")]
)
def test_partial_goes_with_a_file(name, others, message, tools, capsys):
    with pytest.raises(SystemExit):
        tools(name)(["--cfg_file", SECOND, *others, "--partial"])
    assert f"--partial goes with --pretrained_model; {message if name == 'test' else '--ckpt must fit'}" in (
        capsys.readouterr().err
    )


SSG = "cfgs/modelnet_models/pointnet2_ssg.yaml"
HEAD = {"0": "fc1", "1": "bn1", "4": "fc2", "5": "bn2", "8": "fc3"}


@pytest.fixture(scope="module")
def classifier(root):
    """The state of PointNet++ SSG, and the same weights under the names of the common PyTorch port."""
    import yaml

    block = yaml.safe_load((root / SSG).read_text())
    torch.manual_seed(3)
    state = build_model(block["MODEL"], DatasetInfo(tuple(block["CLASS_NAMES"]), ("x", "y", "z"))).state_dict()
    theirs = {}
    for name, value in state.items():
        part, *rest = name.split(".")
        if part == "cls_head":
            theirs[f"{HEAD[rest[1]]}.{rest[2]}"] = value
        elif part == "backbone_3d":
            level = f"sa{int(rest[1]) + 1}" if rest[0] == "sa_modules" else "sa3"
            kind, layer, key = rest[-3:]
            is_kernel = kind == "linears" and key == "weight"
            kind = {"linears": "mlp_convs", "norms": "mlp_bns"}[kind]
            theirs[f"{level}.{kind}.{layer}.{key}"] = value[:, :, None, None] if is_kernel else value
    return state, theirs


def test_a_pytorch_ports_checkpoint(convert, classifier, tmp_path, capsys):
    state, theirs = classifier
    found = {f"module.{name}": value for name, value in theirs.items()}
    torch.save({"epoch": 8, "class_acc": np.float64(0.9), "model_state_dict": found}, tmp_path / "port.pth")
    given = [str(tmp_path / "port.pth"), str(tmp_path / "ours.pth"), "--to", "pcdet"]
    with pytest.raises(ValueError, match=r"another implementation \(port\); add --cfg_file"):
        convert(given)
    assert convert([*given, "--cfg_file", SSG]) == 0
    assert equal_weights(tmp_path / "ours.pth", state)
    assert f"(port): every weight has its place in the model of {SSG}" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"sa1.mlp_convs.0.weight: \(64, 3, 1, 1\) in the file, \(64, 6\) wanted"):
        convert([*given, "--force", "--cfg_file", SSG, "--set", "DATA_CONFIG.USE_NORMALS", "True"])
    assert load_checkpoint(tmp_path / "ours.pth")["epoch"] == 0  # weights to start from or to test, no run to resume


def test_a_tensorflow_checkpoints_variables(convert, classifier, tmp_path):
    state, theirs = classifier
    arrays = {}
    for name, value in theirs.items():
        head, *middle, key = name.split(".")
        layer = middle[-1] if middle else head[-1]
        scope = f"layer{head[-1]}/conv{layer}" if middle else f"fc{layer}"
        norm = "bns" in name or head.startswith("bn")
        new = ("gamma", "beta") if norm else ("weights", "biases")
        keys = ("weight", "bias", "running_mean", "running_var")
        new = dict(zip(keys, (*new, "moving_mean", "moving_variance"), strict=True))
        if key in new:
            value = value.permute(2, 3, 1, 0) if value.ndim == 4 else value.T if value.ndim == 2 else value
            arrays[f"{scope}/{'bn/' if norm else ''}{new[key]}"] = value.numpy()
    np.savez(tmp_path / "variables.npz", **arrays, beta1_power=np.float32(0.1))
    given = [str(tmp_path / "variables.npz"), str(tmp_path / "ours.pth"), "--to", "pcdet"]
    assert convert([*given, "--cfg_file", SSG]) == 0
    found = load_checkpoint(tmp_path / "ours.pth")["model_state"]
    assert found.keys() == state.keys()
    for name, value in state.items():
        shift = 0.001 - 1e-5 if "running_var" in name else 0  # what the two libraries add to a variance
        torch.testing.assert_close(found[name], value + shift if shift else value, rtol=0, atol=1e-7 if shift else 0)

    np.savez(tmp_path / "other.npz", w=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz has no variable of PointNet\+\+: w"):
        convert([str(tmp_path / "other.npz"), *given[1:], "--force", "--cfg_file", SSG])
    (tmp_path / "noise.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"noise\.npz is not an NPZ file of numbers"):
        convert([str(tmp_path / "noise.npz"), *given[1:], "--force", "--cfg_file", SSG])
    with pytest.raises(FileNotFoundError, match=r"missing\.npz does not exist"):
        convert([str(tmp_path / "missing.npz"), *given[1:], "--force", "--cfg_file", SSG])
