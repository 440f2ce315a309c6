"""Make the files that training reads: infos and object database of KITTI or own data, or simulated data sets."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


class Command(NamedTuple):
    """One sub-command: its options and what it does; ``run`` returns a text for the end."""

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], str]


def kitti_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data_path", type=Path, required=True, help="folder with ImageSets and training")
    parser.add_argument("--save_path", type=Path, help="where the files go; default: data_path")


def kitti(given: argparse.Namespace) -> str:
    from pcdet.datasets.kitti.infos import create_infos

    table = create_infos(given.data_path, given.save_path)
    return f"{table}\nwritten to {given.save_path or given.data_path}"


def custom_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cfg_file", required=True, help="the data set's YAML, or a model's")
    parser.add_argument("--data_path", type=Path, help="folder with ImageSets, points and labels; default: DATA_PATH")
    parser.add_argument("--save_path", type=Path, help="where the files go; default: the data's folder")


def custom(given: argparse.Namespace) -> str:
    from pcdet.config import load_data_settings
    from pcdet.datasets.custom.infos import create_infos

    settings = load_data_settings(given.cfg_file)
    table = create_infos(settings, given.data_path, given.save_path)
    return f"{table}\nwritten to {given.save_path or given.data_path or settings['DATA_PATH']}"


def subset_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data_path", type=Path, required=True, help="KITTI folder to take frames from")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--frames", type=int, default=8, help="training frames to copy, default 8")
    parser.add_argument("--with_class", help="only frames that hold an object of this class")


def subset(given: argparse.Namespace) -> str:
    from pcdet.datasets.kitti.infos import create_infos
    from pcdet.datasets.kitti.subset import copy_subset

    chosen = copy_subset(given.data_path, given.out, given.frames, given.with_class)
    return f"{create_infos(given.out)}\n{len(chosen)} frames, as train and as val, are in {given.out}"


def output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal files, default 0")


def simulate_kitti_options(parser: argparse.ArgumentParser) -> None:
    output_options(parser)
    parser.add_argument("--frames", type=int, default=200, help="default 200")
    parser.add_argument("--val_fraction", type=float, default=0.2, help="share of held-out frames, default 0.2")
    parser.add_argument(
        "--fov_only", action="store_true", help="keep only points the camera sees: files 6 times smaller"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes, default 1; the files do not depend on it")


def simulate_kitti(given: argparse.Namespace) -> str:
    from pcdet.datasets.synthetic import simulate_kitti

    simulate_kitti(
        given.out, given.frames, given.seed, given.val_fraction, workers=given.workers, fov_only=given.fov_only
    )
    return f"{given.frames} simulated frames in KITTI's layout are in {given.out}"


def simulate_custom_options(parser: argparse.ArgumentParser) -> None:
    output_options(parser)
    parser.add_argument("--frames", type=int, default=40, help="default 40")
    parser.add_argument("--val_fraction", type=float, default=0.2, help="share of held-out frames, default 0.2")
    parser.add_argument("--workers", type=int, default=1, help="processes, default 1; the files do not depend on it")


def simulate_custom(given: argparse.Namespace) -> str:
    from pcdet.datasets.synthetic import simulate_custom

    simulate_custom(given.out, given.frames, given.seed, given.val_fraction, workers=given.workers)
    return f"{given.frames} simulated frames in OpenPCDet's custom layout are in {given.out}"


def simulate_modelnet_options(parser: argparse.ArgumentParser) -> None:
    output_options(parser)
    parser.add_argument("--per_class", type=int, default=100, help="shapes of each class, default 100")


def simulate_modelnet(given: argparse.Namespace) -> str:
    from pcdet.datasets.synthetic import simulate_modelnet

    simulate_modelnet(given.out, given.per_class, given.seed)
    return f"simulated shapes, {given.per_class} of each class, are in {given.out} in ModelNet's layout"


def simulate_shapenetpart_options(parser: argparse.ArgumentParser) -> None:
    output_options(parser)
    parser.add_argument("--per_class", type=int, default=60, help="shapes of each category, default 60")


def simulate_shapenetpart(given: argparse.Namespace) -> str:
    from pcdet.datasets.synthetic import simulate_shapenetpart

    simulate_shapenetpart(given.out, given.per_class, given.seed)
    return (
        f"simulated shapes with parts, {given.per_class} of each category, are in {given.out} in ShapeNetPart's layout"
    )


COMMANDS = {
    "kitti": Command("infos and ground-truth database of a KITTI folder", kitti_options, kitti),
    "custom": Command(
        "infos and ground-truth database of own data (OpenPCDet's custom layout)", custom_options, custom
    ),
    "kitti-subset": Command("a few frames of KITTI as a folder of their own, with infos", subset_options, subset),
    "simulate-kitti": Command("ray-cast LiDAR scenes in KITTI's layout", simulate_kitti_options, simulate_kitti),
    "simulate-custom": Command(
        "ray-cast LiDAR scenes, labelled all around, in OpenPCDet's custom layout",
        simulate_custom_options,
        simulate_custom,
    ),
    "simulate-modelnet": Command(
        "sampled parametric shapes in ModelNet's layout", simulate_modelnet_options, simulate_modelnet
    ),
    "simulate-shapenetpart": Command(
        "sampled parametric shapes with parts in ShapeNetPart's layout",
        simulate_shapenetpart_options,
        simulate_shapenetpart,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; errors of the reader's data become one line and the status 1."""
    from pcdet.utils.logging import setup_logger

    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        command.add_options(commands.add_parser(name, help=command.help, description=command.help))
    given = parser.parse_args(arguments)
    setup_logger()
    try:
        print(COMMANDS[given.command].run(given))
    except (ValueError, OSError) as error:
        print(f"{parser.prog} {given.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
