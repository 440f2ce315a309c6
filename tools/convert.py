"""Convert a checkpoint between this project's form, OpenPCDet's, and safetensors; take over weights of PointNet++.

What goes into each form:
  openpcdet    epoch, it, model_state, optimizer_state, version, of tensors and plain numbers: OpenPCDet resumes from
               it, and torch.load(weights_only=True) reads it. Left out: what only our exact resume needs (step within
               the epoch, seed, loss scaler, configuration).
  pcdet        everything that IN holds; of a checkpoint of OpenPCDet its five keys.
  safetensors  the weights, with epoch, it, version and configuration as metadata. Left out: the optimizer state and
               all else, so that it is a file to evaluate or to start from, not to resume from.
Weights are copied bit for bit, so that converting there and back gives equal weights. The optimizer state is copied as
it is. That of adam_onecycle, which all KITTI configurations of OpenPCDet use, has the same two groups here and there
(first all parameters outside batch norm, then those of batch norm), so a run can be continued with it; OpenPCDet's adam
and sgd have one group, and such a state is refused on resuming: start from the weights with --pretrained_model. It is
left out where --cfg_file turns kernels, because its moments are in the old layout.

With --cfg_file the weights are compared with the model of that YAML, nothing is written unless they agree entirely, and
sparse kernels as spconv 1 stores them (kz, ky, kx, in, out) are turned into spconv 2's layout (out, kz, ky, kx, in),
which is ours and OpenPCDet's. Without it kernels stay as they are; both layouts can be read by tools/test.py.

PointNet++ from elsewhere is known by its names and needs --cfg_file: IN may be an NPZ file with the variables of a
TensorFlow checkpoint of charlesq34/pointnet2, or a checkpoint of the common PyTorch port (sa1.mlp_convs.0.weight ...).
Every name must find its place in the model, and nothing is written otherwise. docs/POINTNET2.md has the commands, and
pcdet/train_utils/pointnet2_weights.py the map of names.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import read_config, run

FORMS = ("openpcdet", "safetensors", "pcdet")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """IN OUT, --to, --cfg_file, --force."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    known = "a checkpoint of this project, of OpenPCDet or of a PointNet++ port (.pth), *.safetensors, or *.npz"
    add("input", metavar="IN", type=Path, help=known)
    add("output", metavar="OUT", type=Path, help="the file to write; its folder is made where it does not exist")
    add("--to", choices=FORMS, help="the form to write (default: safetensors where OUT ends so, else it must be given)")
    add("--cfg_file", help="the model's YAML: check the weights against it and turn spconv 1's kernels")
    add("--force", action="store_true", help="overwrite OUT where it exists")
    add("--set", dest="set_cfgs", nargs=argparse.REMAINDER, help="KEY VALUE pairs for --cfg_file, last on the line")
    parser.set_defaults(batch_size=None, print_config=False)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, check, write."""
    given = parse(arguments)
    from pcdet.train_utils.checkpoint import load_checkpoint
    from pcdet.train_utils.checkpoint_forms import WRITERS, form_of, left_out
    from pcdet.train_utils.pointnet2_weights import foreign_weights, read_arrays
    from pcdet.train_utils.weights import model_state_of
    from pcdet.utils.logging import setup_logger

    logger = setup_logger()
    form = form_of(given.output, given.to)
    if given.output.exists() and not given.force:
        raise ValueError(f"{given.output} exists; add --force to overwrite it")
    checkpoint = read_arrays(given.input) if given.input.suffix == ".npz" else load_checkpoint(given.input)
    if foreign := foreign_weights(checkpoint):
        checkpoint = taken_over(given, foreign, logger)
    elif given.input.suffix == ".npz":
        raise ValueError(f"{given.input} has no variable of PointNet++: {', '.join(list(checkpoint)[:5]) or 'none'}")
    weights = model_state_of(checkpoint, given.input)
    if given.cfg_file and not foreign:
        checkpoint = fitted(given, checkpoint, logger)
    WRITERS[form](given.output, checkpoint)
    size = sum(value.numel() * value.element_size() for value in weights.values()) / 2**20
    logger.info("%s -> %s (%s): %d weights, %.1f MiB", given.input, given.output, form, len(weights), size)
    if lost := left_out(form, checkpoint):
        logger.info("Left out, for this form has no place for it: %s", ", ".join(lost))
    return 0


def fitted(given: argparse.Namespace, checkpoint: dict[str, Any], logger: Any) -> dict[str, Any]:
    """The checkpoint with its weights in our layout. Raises ``ValueError`` unless they are the model's."""
    from pcdet.train_utils.weights import fitting_state, model_state_of, sparse_layouts

    model = model_of(given, logger)
    state, report = fitting_state(model, checkpoint, given.input)
    if not report.is_complete:
        raise ValueError(
            f"{given.input} does not fit the model of {given.cfg_file}; nothing written.\n{report.table()}"
        )
    logger.info("%s: all %d weights fit the model of %s", given.input, len(state), given.cfg_file)
    run_state = checkpoint if "model_state" in checkpoint else {}
    out = {**run_state, "model_state": state}
    if sparse_layouts(model, model_state_of(checkpoint)).spconv1 and out.get("optimizer_state"):
        logger.warning("%s: the optimizer state is left out, its moments are in spconv 1's layout", given.input)
        out["optimizer_state"] = None
    return out


def taken_over(given: argparse.Namespace, weights: dict[str, Any], logger: Any) -> dict[str, Any]:
    """A checkpoint with the weights of another PointNet++. Raises ``ValueError`` unless they are the model's."""
    from pcdet.train_utils.pointnet2_weights import pointnet2_state, source_of

    source = source_of(list(weights))
    if not given.cfg_file:
        raise ValueError(
            f"{given.input} holds a PointNet++ in the names of another implementation ({source}); add --cfg_file with "
            "the YAML of the model that it is"
        )
    state = pointnet2_state(model_of(given, logger), weights, given.input)
    logger.info("%s (%s): every weight has its place in the model of %s", given.input, source, given.cfg_file)
    return {"model_state": state}


def model_of(given: argparse.Namespace, logger: Any) -> Any:
    """The model of --cfg_file and --set."""
    from pcdet.models.build import build_model

    config = read_config(given, [])
    return build_model(config.settings.MODEL, info_of(given, config.settings, logger))


def info_of(given: argparse.Namespace, settings: Any, logger: Any) -> Any:
    """What the data set tells a model; no data are read for it."""
    from pcdet.datasets import describe_clouds
    from pcdet.datasets.clouds import CloudFiles

    data = settings.DATA_CONFIG
    if "POINT_CLOUD_RANGE" in data:
        return CloudFiles([given.input], data, settings.CLASS_NAMES, logger).info  # the file is named, never read
    return describe_clouds(data, settings.CLASS_NAMES)


if __name__ == "__main__":
    run(main)
