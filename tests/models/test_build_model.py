import dataclasses
import json
import logging

import pytest
import torch
import yaml

from pcdet.config import load_config
from pcdet.datasets.clouds import CloudFiles
from pcdet.models.build import build_model, register_everything
from pcdet.models.registry import MODELS, SLOTS

NAMES = [
    "PartA2",
    "PartA2_free",
    "pillarnet",
    "pointpillar",
    "pointpillar_newaugs",
    "pointpillar_pyramid_aug",
    "pointrcnn",
    "pointrcnn_iou",
    "pv_rcnn",
    "pv_rcnn_plusplus_reproduced_by_community",
    "second",
    "second_iou",
    "second_multihead",
    "voxel_rcnn_car",
]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_published_checkpoints(name, shared, root):
    """Names, shapes, types and order, all entries of the state."""
    settings = load_config(root / f"cfgs/kitti_models/{name}.yaml").settings
    files = CloudFiles([root], settings.DATA_CONFIG, settings.CLASS_NAMES, logging.getLogger("test"))
    model = build_model(settings.MODEL, files.info)
    recorded = json.loads((shared / "facts/openpcdet_state_dicts_kitti.json").read_text())
    recorded = recorded["state_dicts"][f"kitti_models/{name}.yaml"]
    types = recorded.pop("__dtypes__")
    state = model.state_dict()
    assert {key: list(value.shape) for key, value in state.items()} == recorded
    assert list(state) == list(recorded)
    assert {key: str(value.dtype) for key, value in state.items() if value.dtype != torch.float32} == types


def test_names_are_those_of_all_recorded_configurations(shared):
    recorded = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    images = {"CaDDN", "voxel_rcnn_car_focal_multimodal"}
    assert {f"kitti_models/{name}.yaml" for name in {*NAMES, *images}} == {n for n in recorded if "kitti_models" in n}


@pytest.mark.parametrize("name", NAMES)
def test_configurations_have_the_published_values(name, shared, root):
    recorded = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    for path in (f"kitti_models/{name}.yaml", "dataset_configs/kitti_dataset.yaml"):
        assert yaml.safe_load((root / "cfgs" / path).read_text()) == recorded[path]


@pytest.mark.parametrize("name", ["centerpoint_kitti", "centerpoint_dyn_pillar_kitti"])
def test_centerpoint_has_the_values_of_the_recorded_runs(name, shared, root):
    recorded = json.loads((shared / f"oracles/openpcdet_models/cfgs/{name}.json").read_text())
    assert yaml.safe_load((root / f"cfgs/kitti_models/{name}.yaml").read_text()) == recorded


def test_every_registered_class_has_a_configuration(root):
    register_everything()
    used = {"MODEL": set(), **{key: set() for key in SLOTS}}
    for path in (root / "cfgs").rglob("*.yaml"):
        model = yaml.safe_load(path.read_text()).get("MODEL", {})
        used["MODEL"].add(model.get("NAME"))
        for key in SLOTS:
            used[key].add(model.get(key, {}).get("NAME"))
    assert set(MODELS) <= used["MODEL"]
    for key, (_, registry) in SLOTS.items():
        assert set(registry) <= used[key], key


def test_names_that_do_not_exist(kitti_info, model_settings):
    info, settings = kitti_info("pointpillar"), model_settings("pointpillar")
    with pytest.raises(ValueError, match="MODEL.NAME: no model is called 'PointPilar'. Did you mean 'PointPillar'"):
        build_model(settings | {"NAME": "PointPilar"}, info)
    with pytest.raises(ValueError, match="MODEL.VFE.NAME: no VFE is called 'PilarVFE'. Did you mean 'PillarVFE'"):
        build_model(settings | {"VFE": {"NAME": "PilarVFE"}}, info)
    with pytest.raises(ValueError, match="MODEL.VFE: the block has no NAME; it may be"):
        build_model(settings | {"VFE": {"NUM_FILTERS": [64]}}, info)


def test_slots_that_do_not_exist(kitti_info, model_settings):
    settings = model_settings("pointpillar") | {"NECK": {"NAME": "GeneralizedLSSFPN"}}
    with pytest.raises(ValueError, match="MODEL.NECK: there is no such slot; there are VFE, BACKBONE_3D"):
        build_model(settings, kitti_info("pointpillar"))


@pytest.mark.parametrize(
    "slot, key, message",
    [
        ("VFE", "USE_NROM", "MODEL.VFE: PillarVFE takes no option USE_NROM. Did you mean 'USE_NORM'"),
        ("BACKBONE_2D", "LAYER_NUM", "BaseBEVBackbone takes no option LAYER_NUM. Did you mean 'LAYER_NUMS'"),
        ("DENSE_HEAD", "DIR_OFSET", "AnchorHeadSingle takes no option DIR_OFSET. Did you mean 'DIR_OFFSET'"),
    ],
)
def test_options_that_do_not_exist(slot, key, message, kitti_info, model_settings):
    settings = model_settings("pointpillar")
    settings[slot] |= {key: 1}
    with pytest.raises(ValueError, match=message):
        build_model(settings, kitti_info("pointpillar"))
    with pytest.raises(ValueError, match="Detector takes no option POST_PROCESING"):
        build_model(model_settings("pointpillar") | {"POST_PROCESING": {}}, kitti_info("pointpillar"))


def test_slots_that_do_not_fit(kitti_info, model_settings):
    info, settings = kitti_info("pointpillar"), model_settings("pointpillar")
    without = {key: value for key, value in settings.items() if key != "VFE"}
    with pytest.raises(ValueError, match="MODEL.MAP_TO_BEV reads 'pillar_features', which no slot before it writes"):
        build_model(without, info)
    no_head = {key: value for key, value in settings.items() if key != "DENSE_HEAD"}
    with pytest.raises(ValueError, match="needs the slot DENSE_HEAD"):
        build_model(no_head, info)
    points_only = dataclasses.replace(info, max_points_per_voxel=None)
    with pytest.raises(ValueError, match=r"vfe \(PillarVFE\) reads 'voxels', nobody before it writes it"):
        build_model(settings, points_only)
    with pytest.raises(ValueError, match="NMS_THRESH"):
        build_model(settings | {"POST_PROCESSING": {"SCORE_THRESH": 0.1}}, info)


def test_c13_a_grid_that_does_not_fit_the_strides(kitti_info, model_settings):
    """Case C13: x from 0 to 70 in pillars of 0.16 m is no multiple of 8 cells; the message says what is."""
    area = (0.0, -39.68, -3.0, 70.08, 39.68, 1.0)
    info = dataclasses.replace(kitti_info("pointpillar"), point_cloud_range=area, grid_size=(438, 496, 1))
    with pytest.raises(ValueError) as error:
        build_model(model_settings("pointpillar"), info)
    for part in ("multiply to 8", "POINT_CLOUD_RANGE", "70.08", "VOXEL_SIZE", "69.12 (432 cells)", "70.4 (440 cells)"):
        assert part in str(error.value)
    assert "y has" not in str(error.value)


def test_c13_anchors_of_another_stride_than_the_map(kitti_info, model_settings):
    settings = model_settings("pointpillar")
    for block in settings["DENSE_HEAD"]["ANCHOR_GENERATOR_CONFIG"]:
        block["feature_map_stride"] = 1
    with pytest.raises(ValueError, match="feature_map_stride is 1, but MODEL.BACKBONE_2D alone reduces its input 2"):
        build_model(settings, kitti_info("pointpillar"))


@pytest.mark.parametrize("name", ["pointpillar", "second"])
def test_settings_are_left_alone_and_weights_differ_by_seed_only(name, kitti_info, model_settings):
    settings = model_settings(name)
    before = json.dumps(settings)
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(build_model(settings, kitti_info(name)).state_dict())
    assert json.dumps(settings) == before
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert not torch.equal(models[0]["dense_head.conv_cls.weight"], models[2]["dense_head.conv_cls.weight"])
