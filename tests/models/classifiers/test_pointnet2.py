"""PointNet++ SSG as a classifier: sizes, gradients, learning, and awkward batches."""

import pytest
import torch
from torch.nn import functional as F

from pcdet.models.backbones_3d.pointnet2_ssg import PointNet2SSG
from pcdet.models.classifiers.classifier import Classifier
from pcdet.models.cloud_model import accuracy
from pcdet.models.cls_heads.classification_head import ClassificationHead, ClassPreds
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import ClassScores, TrainOutput

SMALL = {"NPOINTS": [16, 4], "RADIUS": [0.4, 0.8], "NSAMPLE": [8, 4], "MLPS": [[8, 16], [16, 32], [32, 64]]}
PUBLISHED = {
    "NPOINTS": [512, 128],
    "RADIUS": [0.2, 0.4],
    "NSAMPLE": [32, 64],
    "MLPS": [[64, 64, 128], [128, 128, 256], [256, 512, 1024]],
}


def info(classes=3, features=("x", "y", "z")):
    return DatasetInfo(tuple(f"class_{i}" for i in range(classes)), features)


def classifier(sa_config=SMALL, data=None, **head):
    torch.manual_seed(0)
    data = data or info()
    backbone = PointNet2SSG(data, {}, sa_config=sa_config)
    head = ClassificationHead(data, backbone.out_channels, **({"hidden": [32, 16]} | head))
    return Classifier(data, {"backbone_3d": backbone, "cls_head": head})


def batch(size=6, points=64, columns=3, classes=3):
    """Class k is a ball that is flattened along axis k."""
    draw = torch.Generator().manual_seed(size)
    labels = torch.arange(size) % classes
    clouds = F.normalize(torch.randn(size, points, 3, generator=draw), dim=-1)
    for i, label in enumerate(labels):
        clouds[i, :, label] *= 0.1
    extra = torch.randn(size, points, columns - 3, generator=draw)
    return {
        "batch_size": size,
        "frame_id": [str(i) for i in range(size)],
        "index": list(range(size)),
        "point_clouds": torch.cat([clouds, extra], dim=-1),
        "class_labels": labels,
    }


def test_it_has_as_many_parameters_as_the_published_model():
    data = info(40)
    backbone = PointNet2SSG(data, {}, sa_config=PUBLISHED)
    head = ClassificationHead(data, backbone.out_channels)
    assert backbone.out_channels == {"global_features": 1024}
    # (3 + 3 more lines of the paper's table) worked out: weights, biases, and two numbers a channel of batch norm.
    widths = [(3, 64), (64, 64), (64, 128), (131, 128), (128, 128), (128, 256), (259, 256), (256, 512), (512, 1024)]
    widths += [(1024, 512), (512, 256)]
    expected = sum(a * b + 3 * b for a, b in widths) + 256 * 40 + 40
    assert sum(p.numel() for m in (backbone, head) for p in m.parameters()) == expected == 1_475_688


@pytest.mark.parametrize("features", [("x", "y", "z"), ("x", "y", "z", "nx", "ny", "nz")])
def test_every_parameter_gets_a_finite_gradient(features):
    model = classifier(data=info(features=features))
    out = model(batch(columns=len(features)))
    assert isinstance(out, TrainOutput) and set(out.losses) == {"loss_cls"} and set(out.metrics) == {"accuracy"}
    out.losses["loss_cls"].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


def test_one_batch_is_learned_by_heart():
    model, data = classifier(dropout=0.0), batch(12)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(25):
        loss = model(data).losses["loss_cls"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    for norm in model.modules():  # the statistics of the last steps instead of an average over the first ones
        if isinstance(norm, torch.nn.BatchNorm1d):
            norm.momentum = 1.0
    model(data)
    model.eval()
    assert accuracy(model(data).logits, data["class_labels"]) > 0.9


def test_evaluation_gives_logits_and_repeats_itself():
    model = classifier().eval()
    first, second = model(batch()), model(batch())
    assert isinstance(first, ClassScores) and first.logits.shape == (6, 3)
    assert torch.equal(first.logits, second.logits)


def test_a_batch_equals_its_clouds_one_by_one():
    model, data = classifier().eval(), batch(3)
    single = [model({**data, "point_clouds": data["point_clouds"][i : i + 1]}).logits for i in range(3)]
    assert torch.allclose(model(data).logits, torch.cat(single), atol=1e-5)


def test_e1_a_batch_of_one_trains():
    model = classifier()
    model(batch(6)).losses["loss_cls"].backward()
    out = model(batch(1))
    out.losses["loss_cls"].backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_b2_a_cloud_of_one_repeated_point_is_classified():
    data = batch(2)
    data["point_clouds"] = torch.zeros(2, 64, 3)
    assert torch.isfinite(classifier().eval()(data).logits).all()


def test_the_loss_by_hand():
    head = ClassificationHead(info(2), {"global_features": 4}, label_smoothing=0.2)
    preds, labels = ClassPreds(torch.tensor([[1.0, -1.0]])), torch.tensor([0])
    logs = torch.log_softmax(preds.logits, dim=1)[0]
    assert head.loss(preds, labels)["loss_cls"].item() == pytest.approx(-(0.9 * logs[0] + 0.1 * logs[1]).item())


def test_accuracy_by_hand():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    assert accuracy(logits, torch.tensor([0, 1, 1])).item() == pytest.approx(2 / 3)


def test_lists_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="SA_CONFIG"):
        PointNet2SSG(info(), {}, sa_config=SMALL | {"RADIUS": [0.2]})
    with pytest.raises(ValueError, match="CLS_HEAD"):
        Classifier(info(), {"backbone_3d": PointNet2SSG(info(), {}, sa_config=SMALL)})


def test_a_head_without_its_backbone_is_refused():
    with pytest.raises(ValueError, match="global_features"):
        Classifier(info(), {"cls_head": ClassificationHead(info(), {"global_features": 64})})
