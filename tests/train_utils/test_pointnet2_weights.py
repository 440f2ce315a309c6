"""Weights of other PointNet++ implementations: equal outputs in every family, whichever way ours concatenates."""

import copy

import plain_pointnet2 as plain
import pytest
import torch

from pcdet.config import load_config
from pcdet.datasets import describe_clouds
from pcdet.models.build import build_model
from pcdet.train_utils.pointnet2_weights import foreign_weights, pointnet2_state, source_of

# One YAML a family. What differs between the sources is set below.
FAMILIES = {
    "cls_ssg": "modelnet_models/pointnet2_ssg",
    "cls_ssg_normals": "modelnet_models/pointnet2_ssg_normal",
    "cls_msg": "modelnet_models/pointnet2_msg",
    "cls_msg_normals": "modelnet_models/pointnet2_msg_normal",
    "part_ssg": "shapenetpart_models/pointnet2_part_ssg",
    "part_msg": "shapenetpart_models/pointnet2_part_msg",
    "sem_ssg": "s3dis_models/pointnet2_sem_ssg",
    "sem_msg": "s3dis_models/pointnet2_sem_msg",
}
WIDTHS = ("MLPS", "GLOBAL_MLP", "FP_MLPS", "HIDDEN")
POINTS = 48


def settings_of(family, source):
    """A small model of the family; TensorFlow's are not told the coordinates as features, the port's are."""
    settings = copy.deepcopy(load_config(f"cfgs/{FAMILIES[family]}.yaml").settings)
    backbone = settings.MODEL.BACKBONE_3D
    for block in (backbone.SA_CONFIG, backbone, settings.MODEL.get("CLS_HEAD"), settings.MODEL.get("SEG_HEAD")):
        for key in WIDTHS if block else ():
            if key in block:
                block[key] = narrowed(block[key])
    backbone.SA_CONFIG.NPOINTS = [16, 8, 6, 4][: len(backbone.SA_CONFIG.NPOINTS)]
    backbone.SA_CONFIG.NSAMPLE = few(backbone.SA_CONFIG.NSAMPLE)
    if backbone.NAME == "PointNet2Segmentation":
        backbone.COORDINATES_AS_FEATURES = source == "port"
    return settings


def narrowed(value):
    return [narrowed(v) for v in value] if isinstance(value, list) else value // 16 + 3


def few(value):
    return [few(v) for v in value] if isinstance(value, list) else 6


def built(settings):
    info = describe_clouds(settings.DATA_CONFIG, settings.CLASS_NAMES)
    torch.manual_seed(1)
    return build_model(settings.MODEL, info).eval(), info


def sizes_of(settings, info, source):
    also = source == "port" and settings.MODEL.NAME == "Segmenter"
    return plain.sizes_of(settings, info.num_point_features, info.num_class, len(info.category_names or ()), also)


def weights_of(sizes, source):
    if source == "tensorflow":
        return {name: torch.from_numpy(value) for name, value in plain.tensorflow_arrays(sizes).items()}
    return plain.port_model(sizes).state_dict()


def logits(sizes, source, clouds, categories):
    if source == "tensorflow":
        arrays = plain.tensorflow_arrays(sizes)
        chosen = [None] * len(clouds) if categories is None else categories.tolist()
        rows = [plain.tensorflow_logits(arrays, sizes, c, k) for c, k in zip(clouds, chosen, strict=True)]
        return torch.stack(rows)
    with torch.no_grad():
        out = plain.port_model(sizes)(clouds.transpose(1, 2), categories)
    return out.transpose(1, 2) if sizes.carried else out


def compare(settings, source):
    """The converted model says what the plain one says."""
    model, info = built(settings)
    sizes = sizes_of(settings, info, source)
    model.load_state_dict(pointnet2_state(model, weights_of(sizes, source), "weights"))
    clouds = torch.rand(2, POINTS, info.num_point_features, generator=torch.Generator().manual_seed(0))
    batch = {"batch_size": 2, "point_clouds": clouds}
    categories = torch.tensor([1, 4]) if info.category_names else None
    if categories is not None:
        batch["categories"] = categories
    with torch.no_grad():
        found = model(batch).logits
    expected = logits(sizes, source, clouds, categories)
    assert expected.std() > 0.01 and (expected[0] - expected[1]).abs().max() > 1e-3  # clouds matter
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("source", ["tensorflow", "port"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_outputs(family, source):
    compare(settings_of(family, source), source)


@pytest.mark.parametrize("source", ["tensorflow", "port"])
@pytest.mark.parametrize("family", ["cls_ssg_normals", "cls_msg_normals", "part_ssg", "sem_msg"])
def test_equal_outputs_with_our_other_order(family, source):
    settings = settings_of(family, source)
    backbone = settings.MODEL.BACKBONE_3D
    backbone.FEATURES_FIRST = not backbone.get("FEATURES_FIRST", family.startswith("cls_msg"))
    if "LAST_SKIP" in backbone:
        backbone.LAST_SKIP = ["features", "category", "coordinates"]
    compare(settings, source)


def test_the_published_part_segmenter_is_not_told_the_category():
    settings = settings_of("part_ssg", "tensorflow")
    settings.MODEL.BACKBONE_3D.LAST_SKIP = ["coordinates", "features"]
    compare(settings, "tensorflow")


def test_one_layer_by_hand():
    settings = settings_of("cls_ssg", "tensorflow")
    model, info = built(settings)
    weights = weights_of(sizes_of(settings, info, "tensorflow"), "tensorflow")
    state = pointnet2_state(model, weights, "weights")
    kernel = weights["layer2/conv0/weights"]  # (1, 1, I, O)
    assert torch.equal(state["backbone_3d.sa_modules.1.mlp.linears.0.weight"], kernel[0, 0].T)
    assert torch.equal(state["cls_head.layers.0.weight"], weights["fc1/weights"].T)
    variance = state["cls_head.layers.1.running_var"] + model.cls_head.layers[1].eps
    torch.testing.assert_close(variance, weights["fc1/bn/moving_variance"] + 0.001)

    settings = settings_of("part_msg", "port")
    model, info = built(settings)
    weights = weights_of(sizes_of(settings, info, "port"), "port")
    state = pointnet2_state(model, weights, "weights")
    theirs = weights["fp2.mlp_convs.0.weight"][:, :, 0]  # their columns: own, carried
    carried = model.backbone_3d.fp_modules[1].known_channels
    ours = state["backbone_3d.fp_modules.1.mlp.linears.0.weight"]
    assert torch.equal(ours[:, :carried], theirs[:, -carried:]) and torch.equal(ours[:, carried:], theirs[:, :-carried])
    assert int(state["backbone_3d.fp_modules.1.mlp.norms.0.num_batches_tracked"]) == 7


def test_the_optimizers_variables_of_tensorflow_are_passed_over():
    settings = settings_of("cls_ssg", "tensorflow")
    model, info = built(settings)
    weights = weights_of(sizes_of(settings, info, "tensorflow"), "tensorflow")
    more = {f"{name}/{slot}": value for name, value in weights.items() for slot in ("Adam", "Adam_1")}
    more |= {"beta1_power": torch.tensor(0.1), "beta2_power": torch.tensor(0.2), "Variable": torch.tensor(7)}
    assert pointnet2_state(model, weights | more, "weights").keys() == model.state_dict().keys()


@pytest.mark.parametrize("source", ["tensorflow", "port"])
def test_every_name_that_does_not_fit_is_listed(source):
    settings = settings_of("cls_ssg", source)
    model, info = built(settings)
    weights = weights_of(sizes_of(settings, info, source), source)
    gone, reshaped, extra = {
        "tensorflow": ("layer1/conv1/bn/gamma", "fc3/biases", "layer9/conv0/weights"),
        "port": ("sa1.mlp_bns.1.weight", "fc3.bias", "sa9.mlp_convs.0.weight"),
    }[source]
    changed = {**weights, reshaped: torch.zeros(3), extra: torch.zeros(1)}
    del changed[gone]
    with pytest.raises(ValueError, match="does not fit the model") as error:
        pointnet2_state(model, changed, "some.file")
    lines = str(error.value).splitlines()
    assert lines[0].startswith(f"some.file ({source})")
    assert [line.split()[-1] for line in lines if "missing" in line] == [gone]
    assert [line.split()[-1] for line in lines if "unknown" in line] == [extra]
    assert [line for line in lines if "other shape" in line] == [
        f"  other shape             {reshaped}: (3,) in the file, (40,) wanted"
    ]


def test_weights_of_the_published_multi_scale_classifier_are_named_as_what_they_are():
    settings = settings_of("cls_msg", "tensorflow")
    model, info = built(settings)
    weights = weights_of(sizes_of(settings, info, "tensorflow"), "tensorflow")
    outputs = weights["layer1/conv0_0/weights"].shape[-1]
    weights["layer1/conv0_0/weights"] = torch.zeros(1, 1, 6, outputs)  # a ball has 6 neighbours, a point 3 columns
    with pytest.raises(ValueError, match="convolves over these instead of the channels"):
        pointnet2_state(model, weights, "weights")


@pytest.mark.parametrize("source, wanted", [("tensorflow", "False"), ("port", "True")])
def test_equal_shapes_of_other_columns_are_refused(source, wanted):
    """Without normals the port's part segmenter has the shapes of one with normals and no coordinates as features."""
    settings = settings_of("part_ssg", source)
    model, info = built(settings)
    weights = weights_of(sizes_of(settings, info, source), source)
    settings.MODEL.BACKBONE_3D.COORDINATES_AS_FEATURES = wanted == "False"
    other, _ = built(settings)
    with pytest.raises(ValueError, match=f"COORDINATES_AS_FEATURES {wanted}"):
        pointnet2_state(other, weights, "weights")


def test_other_models_and_other_names():
    settings = load_config("cfgs/synthetic_models/pointnet_shapes.yaml").settings
    model, _ = built(settings)
    with pytest.raises(ValueError, match="BACKBONE_3D is a PointNet"):
        pointnet2_state(model, {"layer1/conv0/weights": torch.zeros(1, 1, 3, 4)}, "weights")
    with pytest.raises(ValueError, match="no name of either source"):
        pointnet2_state(model, {"w": torch.zeros(1)}, "weights")
    assert source_of(["backbone_3d.sa_modules.0.mlp.linears.0.weight"]) is None
    assert foreign_weights({"model_state": {"vfe.w": torch.zeros(1)}, "epoch": 1}) is None
    assert foreign_weights({"model_state_dict": {"module.sa1.mlp_convs.0.bias": torch.zeros(1)}}).keys() == {
        "sa1.mlp_convs.0.bias"
    }


@pytest.mark.parametrize("source", ["tensorflow", "port"])
def test_the_full_sizes_fit(source):
    """The YAMLs as they are, against models of the published sizes."""
    for family in ("cls_ssg", "cls_msg_normals", "part_msg"):
        settings = copy.deepcopy(load_config(f"cfgs/{FAMILIES[family]}.yaml").settings)
        if settings.MODEL.NAME == "Segmenter":
            settings.MODEL.BACKBONE_3D.COORDINATES_AS_FEATURES = source == "port"
        model, info = built(settings)
        weights = weights_of(sizes_of(settings, info, source), source)
        state = pointnet2_state(model, weights, "weights")
        counters = sum("num_batches_tracked" in name or name == "global_step" for name in state)
        theirs = sum("num_batches_tracked" in name for name in weights)
        assert len(state) - counters == len(weights) - theirs
        assert all(value.isfinite().all() for value in state.values())


def test_no_weight_is_shared_with_the_file():
    settings = settings_of("cls_ssg", "port")
    model, info = built(settings)
    weights = weights_of(sizes_of(settings, info, "port"), "port")
    before = {name: value.clone() for name, value in weights.items()}
    state = pointnet2_state(model, weights, "weights")
    for value in state.values():
        value.zero_()
    assert all(torch.equal(weights[name], value) for name, value in before.items())
