"""A suggested configuration loads, has no problem with its data, and trains."""

import json

import numpy as np
import pytest

from pcdet.config import load_config
from pcdet.datasets import build_dataset
from pcdet.datasets.custom.infos import create_infos
from pcdet.datasets.synthetic import simulate_custom, simulate_kitti
from pcdet.models.build import build_model

FAMILY = ("pv_rcnn", "second", "pointpillar", "voxel_rcnn", "PartA2", "pointrcnn", "centerpoint")
SIZES = {"Lorry": (9.0, 2.5, 3.2), "Walker": (0.8, 0.7, 1.7)}
# Narrow layers: whether the suggested values fit each other does not depend on them.
SMALL = {
    "MODEL.PFE.NUM_KEYPOINTS": "128",
    "MODEL.ROI_HEAD.TARGET_CONFIG.ROI_PER_IMAGE": "16",
    "MODEL.BACKBONE_2D.LAYER_NUMS": "1,1",
    "MODEL.BACKBONE_2D.NUM_FILTERS": "16,16",
    "MODEL.BACKBONE_2D.NUM_UPSAMPLE_FILTERS": "16,16",
    "MODEL.ROI_HEAD.NMS_CONFIG.TRAIN.NMS_PRE_MAXSIZE": "500",
    "MODEL.ROI_HEAD.NMS_CONFIG.TEST.NMS_PRE_MAXSIZE": "100",
    "MODEL.ROI_HEAD.NMS_CONFIG.TEST.NMS_POST_MAXSIZE": "20",
}


@pytest.fixture
def own(tmp_path):
    """Six frames of x y z without intensity: a lorry and two walkers each, labelled as OpenPCDet's text."""
    rng = np.random.default_rng(0)
    for folder in ("points", "labels", "ImageSets"):
        (tmp_path / "own" / folder).mkdir(parents=True)
    for i in range(6):
        clouds, lines = [np.column_stack([rng.uniform(-12, 12, (1500, 2)), np.zeros(1500)])], []
        for name, x in (("Lorry", -6.0), ("Walker", 2.0), ("Walker", 7.0)):
            size, y = np.array(SIZES[name]) * rng.uniform(0.95, 1.05, 3), rng.uniform(-6, 6)
            centre = np.array([x, y, size[2] / 2])
            clouds.append(rng.uniform(-0.49, 0.49, (80, 3)) * size + centre)
            lines.append(" ".join(f"{v:.3f}" for v in (*centre, *size, 0.0)) + f" {name}\n")
        np.save(tmp_path / "own" / "points" / f"{i}.npy", np.concatenate(clouds).astype(np.float32))
        (tmp_path / "own" / "labels" / f"{i}.txt").write_text("".join(lines))
    (tmp_path / "own" / "ImageSets" / "train.txt").write_text("0\n1\n2\n3\n")
    (tmp_path / "own" / "ImageSets" / "val.txt").write_text("4\n5\n")
    return tmp_path / "own"


def test_a_suggestion_for_own_data_is_clean_and_trains_two_steps(own, tools, tmp_path, capsys):
    path = tmp_path / "suggested.yaml"
    assert tools("suggest_cfg")(["--data_path", str(own), "--model", "pv_rcnn", "--out", str(path)]) == 0
    settings = load_config(path).settings
    assert settings.CLASS_NAMES == ["Walker", "Lorry"]
    assert settings.DATA_CONFIG.POINT_FEATURE_ENCODING.missing_values == {"intensity": 0.0}
    first, second = settings.MODEL.DENSE_HEAD.ANCHOR_GENERATOR_CONFIG
    assert first.anchor_sizes[0] == pytest.approx([0.8, 0.7, 1.7], abs=0.06)
    assert second.anchor_sizes[0] == pytest.approx([9.0, 2.5, 3.2], abs=0.5)
    assert path.read_text().count("#") >= 6
    capsys.readouterr()
    given = ["--cfg_file", str(path)]
    assert tools("check_data")([*given, "--out", str(tmp_path / "r.html"), "--pictures", "0"]) == 0
    assert "BREAKS" not in (printed := capsys.readouterr().out) and "anchors" not in printed
    assert tools("create_data")(["custom", *given]) == 0
    options = ["--workers", "0", "--output_dir", str(tmp_path / "out"), "--device", "cpu", "--epochs", "1"]
    assert (
        tools("train")([*given, *options, "--batch_size", "2", "--set", *(w for pair in SMALL.items() for w in pair)])
        == 0
    )
    steps, losses = json.loads(next((tmp_path / "out").rglob("history.json")).read_text())["train/loss"]
    assert steps[-1] == 2 and np.isfinite(losses).all()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Four simulated frames with infos and database."""
    root = simulate_custom(tmp_path_factory.mktemp("simulated") / "own", 4, 0, 0.25)
    create_infos(load_config("cfgs/custom_models/second.yaml").settings.DATA_CONFIG, root)
    return root


def narrow(model):
    """Fewer and narrower layers and fewer key points in place: whether a suggestion fits does not depend on them."""
    backbone = model.get("BACKBONE_2D", {})
    for key, value in (("LAYER_NUMS", 1), ("NUM_FILTERS", 16), ("NUM_UPSAMPLE_FILTERS", 16)):
        if key in backbone:
            backbone[key] = [value] * len(backbone[key])
    if "PFE" in model:
        model.PFE.NUM_KEYPOINTS = 128
    if "ROI_HEAD" in model:
        model.ROI_HEAD.TARGET_CONFIG.ROI_PER_IMAGE = 16


@pytest.mark.parametrize("name", FAMILY)
def test_a_suggestion_for_each_model_of_the_family_trains_a_step(name, simulated, tools, tmp_path):
    path = tmp_path / "suggested.yaml"
    assert tools("suggest_cfg")(["--data_path", str(simulated), "--model", name, "--out", str(path)]) == 0
    settings = load_config(path).settings
    assert settings.CLASS_NAMES == ["Vehicle", "Pedestrian", "Cyclist"]
    narrow(settings.MODEL)
    data = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=True)
    model = build_model(settings.MODEL, data.info).train()
    losses = model({**data.collate([data[0]]), "global_step": 0}).losses
    total = sum(losses.values())
    total.backward()
    assert np.isfinite([v.item() for v in losses.values()]).all() and total.item() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_what_depends_on_the_data_is_suggested_for_heads_of_every_kind(own, tools, tmp_path):
    settings = {}
    for name in ("centerpoint", "pointrcnn"):
        path = tmp_path / f"{name}.yaml"
        tools("suggest_cfg")(["--data_path", str(own), "--model", name, "--out", str(path)])
        settings[name] = load_config(path).settings
    head = settings["centerpoint"].MODEL.DENSE_HEAD
    assert head.CLASS_NAMES_EACH_HEAD == [["Walker", "Lorry"]]
    assert head.POST_PROCESSING.POST_CENTER_LIMIT_RANGE == settings["centerpoint"].DATA_CONFIG.POINT_CLOUD_RANGE
    walker, lorry = settings["pointrcnn"].MODEL.POINT_HEAD.TARGET_CONFIG.BOX_CODER_CONFIG.mean_size
    assert walker == pytest.approx([0.8, 0.7, 1.7], abs=0.06) and lorry == pytest.approx([9.0, 2.5, 3.2], abs=0.5)
    assert "VOXEL_SIZE" not in (tmp_path / "pointrcnn.yaml").read_text()


def test_a_head_of_several_parts_gets_one_for_each_class(tools, tmp_path):
    simulate_kitti(tmp_path / "kitti", 4, 0, 0.25, fov_only=True)
    path = tmp_path / "suggested.yaml"
    tools("suggest_cfg")(["--data_path", str(tmp_path / "kitti"), "--model", "second_multihead", "--out", str(path)])
    settings = load_config(path).settings
    heads = settings.MODEL.DENSE_HEAD.RPN_HEAD_CFGS
    assert [h.HEAD_CLS_NAME for h in heads] == [[name] for name in settings.CLASS_NAMES]


def test_a_suggestion_for_kittis_layout_loads_and_fits(tools, tmp_path, capsys):
    simulate_kitti(tmp_path / "kitti", 4, 0, 0.25, fov_only=True)
    path = tmp_path / "suggested.yaml"
    assert (
        tools("suggest_cfg")(["--data_path", str(tmp_path / "kitti"), "--model", "pointpillar", "--out", str(path)])
        == 0
    )
    settings = load_config(path).settings
    assert "Car" in settings.CLASS_NAMES and "EVALUATION" not in settings.DATA_CONFIG
    assert settings.DATA_CONFIG.POINT_CLOUD_RANGE[0] == 0.0
    capsys.readouterr()
    assert tools("check_data")(["--cfg_file", str(path), "--out", str(tmp_path / "r.html"), "--pictures", "0"]) == 0
    assert not [x for x in capsys.readouterr().out.splitlines() if x.startswith("BREAKS")]


def test_what_cannot_be_suggested_is_said(own, tools):
    with pytest.raises(
        ValueError, match="there are PartA2, centerpoint, pointpillar, pointpillar_mini, pointrcnn, pv_rcnn"
    ):
        tools("suggest_cfg")(["--data_path", str(own), "--model", "pv_rcn"])
    with pytest.raises(ValueError, match="clouds without labels"):
        tools("suggest_cfg")(["--data_path", str(own / "points")])
