"""The metric against what KITTI's own evaluator printed."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pcdet.evaluation.kitti import average_precisions
from pcdet.evaluation.kitti.files import parse_annos

CLASSES = ["Car", "Pedestrian", "Cyclist"]
# a: real labels; b: generated frames with ties, boundaries, duplicates; c: edge cases.
SETS = """
    a02_real_perfect a03_real_all_types_as_det b01_synth60 b03_synth60_ties b04_synth60_boundary b06_synth60_dups
    b08_synth60_goodmodel b09_synth60_badmodel b10_synth60_manyfp b14_synth60_mixed b15_synth60_pedcyc b17_synth400
    b19_synth60_logit_scores b21_synth60_sparse_ids b22_synth60_2dec c01_no_detections c03_no_det_of_cyclist
    c04_perfect60 c06_almost_perfect60 c07_one_frame c09_empty_frames c11_all_frames_empty c12_scores_equal
    c13_yaw_flip_pi c15_yaw_pm_pi c16_deg_zero_w c18_deg_zero_h c19_deg_neg_w c21_deg_neg_h c23_deg_all_zero c24_nan_ry
    c27_nan_dims c31_inverted_bbox c33_bev_only c35_alpha_all_m10 c36_alpha_some_m10 c38_only_dontcare_gt c40_ngt_1
    c41_ngt_2 c43_ngt_39 c44_ngt_40 c46_ngt_42 c47_ngt_80 c49_ngt_121 c50_iou_on_threshold c52_concentric_touching
    c57_many_dets_one_frame c61_gt_deg_dims c63_scores_differ_1e-9
""".split()


def texts(archive: Path) -> dict[str, dict[str, str]]:
    """Folder -> file stem -> text of an archive, which is not unpacked."""
    out: dict[str, dict[str, str]] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".txt"):
                path = Path(member.name)
                out.setdefault(path.parent.name, {})[path.stem] = tar.extractfile(member).read().decode()
    return out


def read_set(folder: Path, name: str):
    """Ground truths and detections of every frame."""
    found = texts(folder / f"{name}.tar.gz")
    labels, results = found["label_2"], found["pred"]
    truth = [parse_annos(labels[i], i, scored=False) for i in sorted(labels)]
    return truth, [parse_annos(results[i], i, scored=True) for i in sorted(labels)]


@pytest.fixture(scope="module")
def sets(shared) -> Path:
    return shared / "oracles" / "kitti_eval" / "sets"


@pytest.mark.parametrize("name", SETS)
def test_every_number_of_a_set(sets, name):
    """bbox, bev, 3d, aos; strict and loose; R11 and R40; what was not evaluated is not evaluated."""
    recorded = json.loads((sets / f"{name}.json").read_text())
    for entry in average_precisions(*read_set(sets, name), CLASSES):
        expected = recorded["ap_loose" if entry.loose else "ap"][entry.metric][entry.class_name]
        place = f"{entry.class_name} {entry.metric} {'loose' if entry.loose else 'strict'}"
        for kind in ("R11", "R40"):
            ours = None if entry.scores is None else [getattr(score, kind.lower()) for score in entry.scores]
            assert (ours is None) == (expected[kind] is None), place
            if ours is not None:
                np.testing.assert_allclose(ours, expected[kind], rtol=0, atol=1e-6, err_msg=place)


REFUSED = {
    "c28_nan_score": ":3: the score, field 16, is nan",
    "c30_nan_bbox": ":3: .* is nan; it must be finite",
    "c54_no_score_column": "the score, field 16, is missing",
}
# No number of these is to be asserted: a result file is missing (test_evaluate.py), and detections on DontCare's
# sentinel at -1000, which the devkit takes for DontCare seen from above and we for false ones.
UNDECIDED = {"c53_missing_pred_file", "c59_det_at_minus1000"}


def test_every_recorded_set_has_its_place(sets):
    names = {path.stem for path in sets.glob("*.json")}
    assert names == {*SETS, *REFUSED, *UNDECIDED}
    for name in names:
        if json.loads((sets / f"{name}.json").read_text())["assertable"]:
            assert name not in UNDECIDED


@pytest.mark.parametrize("name", SETS)
def test_scores_by_another_scale_and_frames_in_another_order(sets, name):
    """Only the order of scores counts, and no order of frames: every number stays as it is."""
    truth, found = read_set(sets, name)
    scores, ranks = np.unique(np.concatenate([np.zeros(0), *(f["score"] for f in found)]), return_inverse=True)
    ends = np.cumsum([len(f["score"]) for f in found])[:-1]
    ranked = [f | {"score": np.exp(r / len(scores))} for f, r in zip(found, np.split(ranks, ends), strict=True)]
    order = np.random.default_rng(0).permutation(len(truth))
    shuffled = average_precisions([truth[i] for i in order], [ranked[i] for i in order], CLASSES)
    for ours, other in zip(average_precisions(truth, found, CLASSES), shuffled, strict=True):
        assert (ours.scores is None) == (other.scores is None)
        for one, two in zip(ours.scores or (), other.scores or (), strict=True):
            np.testing.assert_allclose([one.r11, one.r40], [two.r11, two.r40], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name, message", REFUSED.items())
def test_sets_that_no_number_can_be_given_for(sets, name, message):
    with pytest.raises(ValueError, match=message):
        average_precisions(*read_set(sets, name), CLASSES)


@pytest.mark.slow
def test_a_published_detector_on_the_real_validation_frames(shared):
    """Precision at the 41 recall positions as the evaluator printed it, six digits."""
    folder = shared / "oracles" / "kitti_eval" / "real_car_3695"
    labels = texts(folder / "label_2_7481.tar.gz")["label_2"]
    results = texts(folder / "car_detections_val3695.tar.gz")["data"]
    ids = [f"{i:06d}" for i in range(7480)]
    truth = [parse_annos(labels[i], i, scored=False) for i in ids]
    found = [parse_annos(results.get(i, ""), i, scored=True) for i in ids]
    names = {"bbox": "detection", "aos": "orientation", "bev": "detection_ground", "3d": "detection_3d"}
    for entry in average_precisions(truth, found, ["Car"]):
        if not entry.loose:
            recorded = np.loadtxt(folder / f"stats_car_{names[entry.metric]}.txt")  # (3, 41)
            ours = np.stack([score.curve for score in entry.scores])
            np.testing.assert_allclose(ours, recorded, rtol=0, atol=6e-7, err_msg=entry.metric)
