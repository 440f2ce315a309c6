"""Configuration: bases, places, types, --set and the schema."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pcdet.config import ConfigError, load_config
from pcdet.config.nodes import parse_file, parse_value
from pcdet.config.source_schema import SourceIndex

POINTPILLAR = "cfgs/kitti_models/pointpillar.yaml"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def child(tmp_path: Path, text: str) -> Path:
    """A YAML that is our PointPillars with some keys changed."""
    return write(tmp_path, "child.yaml", f"_BASE_CONFIG_: {POINTPILLAR}\n{text}")


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 0.001),
        ("1.0e-3", 0.001),
        ("-5", -5),
        (".5", 0.5),
        ("1_000", 1000),
        ("no", "no"),
        ("yes", "yes"),
        ("True", True),
        ("false", False),
        ("012", "012"),
        ("1:30", "1:30"),
        ("null", None),
        ("[1, 2.0, a]", [1, 2.0, "a"]),
    ],
)
def test_scalars(text, value):
    got = parse_value(text)
    assert got == value and type(got) is type(value)


def test_duplicate_key_names_both_lines(tmp_path):
    path = write(tmp_path, "a.yaml", "A:\n  LR: 1\n  B: 2\n  LR: 3\n")
    with pytest.raises(ConfigError, match=r"a\.yaml:4: the key A\.LR stands twice, first in line 2"):
        parse_file(path)


def test_syntax_error_names_the_line(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.yaml:[23]: "):
        parse_file(write(tmp_path, "a.yaml", "A: 1\nB: [1, 2\n"))


def test_base_replaces_lists_whole_and_merges_mappings(tmp_path):
    cfg = load_config(child(tmp_path, "MODEL:\n  BACKBONE_2D: {LAYER_NUMS: [2, 2, 2]}\nOPTIMIZATION: {LR: 1e-3}\n"))
    assert cfg.settings.MODEL.BACKBONE_2D.LAYER_NUMS == [2, 2, 2]
    assert cfg.settings.MODEL.BACKBONE_2D.NUM_FILTERS == [64, 128, 256]  # untouched
    assert cfg.settings.OPTIMIZATION.LR == 0.001
    assert cfg.origin("OPTIMIZATION", "LR").endswith("child.yaml:4")
    assert cfg.origin("MODEL", "BACKBONE_2D", "NUM_FILTERS").split(":")[0].endswith("pointpillar.yaml")
    assert cfg.origin("DATA_CONFIG", "DATASET").split(":")[0].endswith("kitti_dataset.yaml")  # a base of the base


def test_base_beside_the_file_comes_first(tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    write(tmp_path, "near/base.yaml", "X: near\n")
    write(tmp_path / "cwd", "base.yaml", "X: cwd\n")
    monkeypatch.chdir(tmp_path / "cwd")
    path = write(tmp_path, "near/a.yaml", f"_BASE_CONFIG_: {POINTPILLAR}\nMODEL: {{_BASE_CONFIG_: base.yaml}}\n")
    with pytest.raises(ConfigError, match=r"near/base\.yaml:1: MODEL\.X"):
        load_config(path)


def test_base_may_be_what_stands_below_a_key_of_a_file(tmp_path):
    write(tmp_path, "b.yaml", "A: {B: {LR: 0.5}}\n")
    cfg = load_config(child(tmp_path, "OPTIMIZATION: {_BASE_CONFIG_: 'b.yaml#A.B'}\n"))
    assert cfg.settings.OPTIMIZATION.LR == 0.5 and cfg.origin("OPTIMIZATION", "LR").endswith("b.yaml:1")
    with pytest.raises(ConfigError, match=r"child\.yaml:2: _BASE_CONFIG_ 'b\.yaml#A\.C': .*b\.yaml has no such key"):
        load_config(child(tmp_path, "OPTIMIZATION: {_BASE_CONFIG_: 'b.yaml#A.C'}\n"))


def test_missing_base_lists_the_places_tried(tmp_path):
    path = write(tmp_path, "a.yaml", "DATA_CONFIG:\n  _BASE_CONFIG_: nowhere.yaml\n")
    with pytest.raises(ConfigError, match=r"a\.yaml:2: .*nowhere\.yaml' is not found(.|\n)*tools/nowhere\.yaml"):
        load_config(path)


def test_circular_base_is_an_error(tmp_path):
    write(tmp_path, "b.yaml", "_BASE_CONFIG_: a.yaml\n")
    with pytest.raises(ConfigError, match=r"circle: a\.yaml -> b\.yaml -> a\.yaml"):
        load_config(write(tmp_path, "a.yaml", "_BASE_CONFIG_: b.yaml\n"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("MODEL:\n  BACKBONE_2D: {LAYER_NUM: [3]}", r"child\.yaml:3: MODEL\.BACKBONE_2D\.LAYER_NUM: .*'LAYER_NUMS'"),
        ("MODEL:\n  VFE: {NAME: PillarVFF}", r"child\.yaml:3: MODEL\.VFE\.NAME: no VFE.*'PillarVFE'"),
        ("MODEL:\n  BACKBONE2D: {}", r"child\.yaml:3: MODEL\.BACKBONE2D: .*'BACKBONE_2D'"),
        ("OPTIMIZATION:\n  LR: fast", r"child\.yaml:3: OPTIMIZATION\.LR: 'fast' should be a number"),
        ("OPTIMIZATION:\n  NUM_EPOCHS: 1.5", r"child\.yaml:3: OPTIMIZATION\.NUM_EPOCHS: 1\.5 should be a whole number"),
        ("OPTIMIZATION:\n  LEARNING: 1", r"child\.yaml:3: OPTIMIZATION\.LEARNING: Optimization takes no option"),
        ("MODEL:\n  BACKBONE_2D: {LAYER_NUMS: [3, x, 5]}", r"child\.yaml:3: MODEL\.BACKBONE_2D\.LAYER_NUMS\.1: 'x'"),
        ("MODEL:\n  VFE: {USE_NORM: no}", r"MODEL\.VFE\.USE_NORM: 'no' should be true or false"),
        (
            "MODEL:\n  POST_PROCESSING:\n    NMS_CONFIG: {NMS_TRESH: 0.1}",
            r"child\.yaml:4: MODEL\.POST_PROCESSING\.NMS_CONFIG\.NMS_TRESH: .*'NMS_THRESH'",
        ),
        ("DATA_CONFIG: {DATA_PATHS: x}", r"child\.yaml:2: DATA_CONFIG\.DATA_PATHS: .*'DATA_PATH'"),
        ("MODELL: {}", r"child\.yaml:2: MODELL: unknown key\. Did you mean 'MODEL'"),
        ("CLASS_NAMES: [Car, Car]", r"child\.yaml:2: CLASS_NAMES: a class stands twice"),
    ],
)
def test_errors_name_file_line_key_and_nearest(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_config(child(tmp_path, text + "\n"))


def value(overrides: list[str], *keys):
    found = load_config(POINTPILLAR, overrides).settings
    for key in keys:
        found = found[key]
    return found


def test_set_int_for_a_float():
    lr = value(["OPTIMIZATION.LR", "1"], "OPTIMIZATION", "LR")
    assert lr == 1.0 and isinstance(lr, float)


@pytest.mark.parametrize("text", ["0,-40,-3,70.4,40,1", "[0, -40, -3, 70.4, 40, 1]"])
def test_set_lists_with_and_without_brackets(text):
    assert value(["DATA_CONFIG.POINT_CLOUD_RANGE", text], "DATA_CONFIG", "POINT_CLOUD_RANGE") == [
        0,
        -40,
        -3,
        70.4,
        40,
        1,
    ]


@pytest.mark.parametrize("text", ["False", "false"])
def test_set_false_stays_false(text):
    assert value(["OPTIMIZATION.LR_WARMUP", text], "OPTIMIZATION", "LR_WARMUP") is False


def test_set_one_word_for_a_list_and_names():
    assert value(["OPTIMIZATION.DECAY_STEP_LIST", "7"], "OPTIMIZATION", "DECAY_STEP_LIST") == [7]


def test_set_mapping_by_pairs():
    split = value(["DATA_CONFIG.DATA_SPLIT", "train:val,test:train"], "DATA_CONFIG", "DATA_SPLIT")
    assert split == {"train": "val", "test": "train"}


def test_set_list_elements_by_index():
    got = value(["DATA_CONFIG.DATA_PROCESSOR.2.MAX_POINTS_PER_VOXEL", "16"], "DATA_CONFIG", "DATA_PROCESSOR")
    assert got[2]["MAX_POINTS_PER_VOXEL"] == 16
    assert value(["DATA_CONFIG.POINT_CLOUD_RANGE.0", "1"], "DATA_CONFIG", "POINT_CLOUD_RANGE")[0] == 1


def test_set_origin_is_told():
    assert load_config(POINTPILLAR, ["OPTIMIZATION.LR", "0.1"]).origin("OPTIMIZATION", "LR") == "--set"


def test_set_may_name_an_option_that_the_file_leaves_to_its_default():
    assert value(["OPTIMIZATION.ACCUMULATION_STEPS", "4"], "OPTIMIZATION", "ACCUMULATION_STEPS") == 4


@pytest.mark.parametrize(
    "pairs, message",
    [
        (["OPTIMIZATION.LRR", "1"], r"LRR.*'LR'"),
        (["OPTIMISATION.LR", "1"], r"no key 'OPTIMISATION'.*'OPTIMIZATION'"),
        (["OPTIMIZATION.LR"], "has no value"),
        (["OPTIMIZATION.LR", "True"], "a number"),
        (["OPTIMIZATION.LR_WARMUP", "1"], "true or false"),
        (["DATA_CONFIG.DATA_PROCESSOR.9.NAME", "x"], "not an index from 0 to 2"),
        (["DATA_CONFIG.DATA_SPLIT", "train:val,tset:val"], r"'tset'.*'test'"),
        (["OPTIMIZATION.LR.X", "1"], "no keys below"),
        (["DATA_CONFIG.DATA_SPLIT.valid", "x"], "valid"),
    ],
)
def test_set_errors(pairs, message):
    with pytest.raises(ConfigError, match=message):
        load_config(POINTPILLAR, pairs)


def test_dump_loads_to_the_same(tmp_path):
    cfg = load_config(POINTPILLAR, ["OPTIMIZATION.LR", "1e-3"])
    again = load_config(write(tmp_path, "again.yaml", cfg.dump()))
    assert again.settings == cfg.settings


def test_a_recipe_is_laid_upon_a_block_by_set():
    name = "cfgs/modelnet_models/pointnet2_ssg.yaml"
    recipe = ["OPTIMIZATION._BASE_CONFIG_", "cfgs/recipes/pointnet2_modern.yaml"]
    found = load_config(name, [*recipe, "OPTIMIZATION.LR", "0.5"])
    modern = load_config("cfgs/modelnet_models/pointnet2_ssg_modern.yaml").settings.OPTIMIZATION
    assert found.settings.OPTIMIZATION == {**modern, "LR": 0.5}  # a later pair goes first
    assert found.origin("OPTIMIZATION", "WEIGHT_DECAY").endswith("pointnet2_modern.yaml:9")
    assert found.settings.MODEL == load_config(name).settings.MODEL
    with pytest.raises(ConfigError, match="--set: _BASE_CONFIG_ 'cfgs/no.yaml' is not found"):
        load_config(name, ["OPTIMIZATION._BASE_CONFIG_", "cfgs/no.yaml"])
    with pytest.raises(ConfigError, match="there is no key 'OPTIMISATION'. Did you mean 'OPTIMIZATION'"):
        load_config(name, ["OPTIMISATION._BASE_CONFIG_", recipe[1]])
    with pytest.raises(ConfigError, match=r"OPTIMIZATION.LR._BASE_CONFIG_: 0.001 .* is no block"):
        load_config(name, ["OPTIMIZATION.LR._BASE_CONFIG_", recipe[1]])
    with pytest.raises(ConfigError, match="ClassificationHead takes no option"):
        load_config(name, ["MODEL.CLS_HEAD._BASE_CONFIG_", recipe[1]])


def test_one_pair_of_set_switches_the_whole_recipe_of_a_classifier():
    """Optimiser, augmentation and label smoothing, there and back."""
    published, modern = (f"cfgs/modelnet_models/pointnet2_ssg{name}.yaml" for name in ("", "_modern"))
    pair = "_BASE_CONFIG_", "cfgs/recipes/pointnet2_modern_classifier.yaml"
    assert load_config(published, pair).settings == load_config(modern).settings
    back = load_config(modern, ["_BASE_CONFIG_", "cfgs/recipes/pointnet2_published_classifier.yaml"]).settings
    wanted = load_config(published).settings
    assert back.MODEL == wanted.MODEL
    assert back.DATA_CONFIG.AUGMENTATION == {**wanted.DATA_CONFIG.AUGMENTATION, "SCALE_PER_AXIS": False}
    unused = {"BETAS": [0.9, 0.999], "WARMUP_ITER": 0}  # options of the other optimiser
    assert back.OPTIMIZATION == {**unused, **wanted.OPTIMIZATION}
    with_normals = load_config("cfgs/modelnet_models/pointnet2_msg_normal.yaml", pair).settings
    assert with_normals.OPTIMIZATION.OPTIMIZER == "adam_cosineanneal" and with_normals.OPTIMIZATION.BN_MOMENTUM is None
    assert with_normals.MODEL.CLS_HEAD.LABEL_SMOOTHING == 0.2 and with_normals.DATA_CONFIG.AUGMENTATION.SCALE_PER_AXIS


def test_describe_names_the_place_of_every_value():
    text = load_config(POINTPILLAR, ["OPTIMIZATION.LR", "0.1"]).describe()
    assert any("OPTIMIZATION.LR: 0.1" in row and row.endswith("# --set") for row in text.splitlines())
    assert any(
        "DATA_CONFIG.DATASET: 'KittiDataset'" in row and "kitti_dataset.yaml:" in row for row in text.splitlines()
    )
    assert all("#" in row for row in text.splitlines())


def test_groups_of_the_output_folder(tmp_path):
    cfg = load_config(POINTPILLAR)
    assert (cfg.exp_group_path, cfg.tag) == ("kitti_models", "pointpillar")
    assert load_config(child(tmp_path, "")).exp_group_path == tmp_path.name


def test_every_yaml_of_ours_loads(root):
    found = [p for p in sorted((root / "cfgs").rglob("*.yaml")) if p.parent.name not in ("dataset_configs", "recipes")]
    assert len(found) >= 5
    for path in found:
        load_config(path)


def test_no_torch_is_imported(root):
    code = (
        "import sys; from pcdet.config import load_config; load_config(sys.argv[1]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, POINTPILLAR], check=True, cwd=root)


@pytest.mark.parametrize("name", ["kitti_models/pointpillar.yaml", "kitti_models/second.yaml"])
def test_upstream_values_load_unchanged_and_equal_ours(shared, tmp_path, monkeypatch, name):
    values = json.loads((shared / "facts/openpcdet_configs_kitti.json").read_text())
    for key in (name, "dataset_configs/kitti_dataset.yaml"):
        write(tmp_path, f"cfgs/{key}", yaml.safe_dump(values[key], sort_keys=False))
    monkeypatch.chdir(tmp_path)
    upstream = load_config(tmp_path / "cfgs" / name)
    assert upstream.settings == load_config(f"cfgs/{name}").settings


def test_two_blocks_of_one_name_are_not_taken_for_each_other(tmp_path):
    """Annotations name a block without its module. One that extends another is a block as well."""
    first = "class Base(TypedDict):\n    A: int\n\nclass Levels(Base, total=False):\n    B: int\n"
    files = [write(tmp_path, "a.py", first), write(tmp_path, "b.py", "class Levels(TypedDict):\n    A: int\n")]
    for order in (files, files[::-1]):
        with pytest.raises(AssertionError, match="Levels stands in .* and in"):
            SourceIndex(order)
    SourceIndex([files[0], write(tmp_path, "c.py", "class Other:\n    pass\n")])


def test_an_option_of_another_backbone_is_refused(tmp_path):
    """Only the backbones of scenes have USE_XYZ; in a classifier's levels it would have no effect."""
    path = write(
        tmp_path,
        "a.yaml",
        "_BASE_CONFIG_: cfgs/modelnet_models/pointnet2_msg.yaml\nMODEL: {BACKBONE_3D: {SA_CONFIG: {USE_XYZ: false}}}\n",
    )
    with pytest.raises(ConfigError, match="takes no option USE_XYZ"):
        load_config(path)
