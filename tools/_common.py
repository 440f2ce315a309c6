"""What the command lines share: options, errors for the reader, folders, building."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
VIEWER = Path()  # --rerun without a file
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from pcdet.config import Config


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command; errors of the reader's configuration or data become one message and the status 1."""
    try:
        status = main()
    except (ValueError, OSError) as error:
        explain_failure(error)
        report(error)
        status = 1
    except RuntimeError as error:
        message = explain_failure(error)
        if message is None:
            raise
        report(RuntimeError(message))
        status = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    if "torch" in sys.modules and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        from pcdet.train_utils.launch import end_process

        end_process(status)
    sys.exit(status)


def explain_failure(error: Exception) -> str | None:
    """What became of the other ranks, if this one fails because it lost them; also tells them of this one's end."""
    if "pcdet.train_utils.launch" not in sys.modules:
        return None
    from pcdet.train_utils import launch

    return launch.explain_failure(error)


def report(error: Exception) -> None:
    """Say what went wrong, in the run's log too if there is one by then."""
    from pcdet.utils.logging import get_logger

    handlers = get_logger().handlers
    if handlers:
        get_logger().error("%s", error)
    else:
        print(f"error: {error}", file=sys.stderr)


def positive(text: str) -> int:
    """A whole number of 1 or more, as the type of an option."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options that training and testing share."""
    add = parser.add_argument
    batch_help = "scenes of a step over all processes and micro-batches (default: BATCH_SIZE_PER_GPU for each)"
    add("--cfg_file", required=True, help="the model's YAML, such as cfgs/kitti_models/pointpillar.yaml")
    add("--batch_size", type=int, help=batch_help)
    add("--workers", type=int, default=4, help="processes that load data, for each rank; 0 loads in the main process")
    add("--extra_tag", default="default", help="last folder of the output's path")
    ours = "of this project or of OpenPCDet (spconv 1 or 2), or *.safetensors"
    add("--ckpt", type=Path, help=f"checkpoint to continue from (train) or to evaluate (test): {ours}")
    add("--pretrained_model", type=Path, help="take over the weights that the model has too, and list the others")
    add(
        "--partial",
        action="store_true",
        help="pass over weights of other shapes; in training of --pretrained_model only",
    )
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto takes a GPU where there is one")
    add("--launcher", choices=["none", "pytorch", "slurm"], default="none", help="pytorch: started by torchrun")
    add(
        "--tcp_port",
        type=int,
        help="rendezvous port, for slurm (default: by the job's number); torchrun chooses its own",
    )
    add("--dist_timeout", type=float, default=1800, help="seconds to wait for other processes before giving up")
    add("--local_rank", "--local-rank", type=int, help="set by torch.distributed.launch")
    add("--output_dir", type=Path, default=ROOT / "output", help="root of the output (default: output)")
    add("--save_to_file", action="store_true", help="write the data set's result files when evaluating")
    add("--print_config", action="store_true", help="print every resolved value with the file that set it, and stop")
    add("--set", dest="set_cfgs", nargs=argparse.REMAINDER, help="KEY VALUE pairs, last on the line")


def add_view_options(parser: argparse.ArgumentParser, scenes: str) -> None:
    """--html and --rerun; ``scenes`` says which ones they show."""
    parser.add_argument("--html", type=Path, metavar="OUT", help=f"write {scenes} into one page with a 3-D view")
    text = f"show {scenes} in the Rerun viewer, or write them into the file OUT (.rrd); needs rerun-sdk"
    parser.add_argument("--rerun", type=Path, nargs="?", const=VIEWER, metavar="OUT", help=text)


def parse_options(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *, resumes: bool
) -> argparse.Namespace:
    """Parse, and refuse what does not go together. A run that ``resumes`` from --ckpt needs all of it."""
    given = parser.parse_args(arguments)
    if given.partial and given.pretrained_model is None and (resumes or given.ckpt is None):
        rest = "--ckpt must fit entirely, to go on from it" if resumes else "or with --ckpt"
        parser.error(f"--partial goes with --pretrained_model; {rest}")
    return given


def world_size(launcher: str) -> int:
    """How many processes the launcher has started, as its environment tells."""
    variable = {"pytorch": "WORLD_SIZE", "slurm": "SLURM_NTASKS"}.get(launcher)
    return int(os.environ.get(variable, 1)) if variable else 1


def batch_override(given: argparse.Namespace, accumulation_steps: int) -> list[str]:
    """``--batch_size``, which counts the scenes of a whole step, as a ``--set`` of those of one micro-batch."""
    from pcdet.train_utils.global_batch import micro_batch

    scenes = micro_batch(given.batch_size, world_size(given.launcher), accumulation_steps)
    return ["OPTIMIZATION.BATCH_SIZE_PER_GPU", str(scenes)]


def read_config(given: argparse.Namespace, overrides: list[str], *, accumulates: bool = False) -> "Config | None":
    """The checked configuration, or ``None`` after printing it. Imports no torch.

    ``accumulates``: the command takes steps of ACCUMULATION_STEPS micro-batches, so that ``--batch_size`` is their sum.
    """
    from pcdet.config import load_config

    values = [*overrides, *(given.set_cfgs or [])]
    config = load_config(given.cfg_file, values)
    if given.batch_size is not None:
        steps = config.settings.OPTIMIZATION.get("ACCUMULATION_STEPS", 1) if accumulates else 1
        config = load_config(given.cfg_file, [*batch_override(given, steps), *values])
    if given.print_config:
        print(config.describe())
        return None
    return config


def output_folder(given: argparse.Namespace, config: "Config") -> Path:
    """``output/<group>/<configuration>/<extra_tag>``."""
    return given.output_dir / config.exp_group_path / config.tag / given.extra_tag


def start(given: argparse.Namespace) -> Any:
    """Join the other processes, if any, and return this one's torch device."""
    from pcdet.train_utils.launch import choose_device, keep_freed_memory, start_processes

    if given.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(given.local_rank))
    start_processes(given.launcher, given.tcp_port, given.device, given.dist_timeout)
    device = choose_device(given.device)
    if device.type == "cpu":
        keep_freed_memory()
    return device


def stop() -> None:
    """Leave the other processes."""
    from pcdet.train_utils.launch import stop_processes

    stop_processes()


def on_terminal() -> bool:
    """Is there someone to watch a bar?"""
    return sys.stderr.isatty()


def split_name(settings: Any) -> str:
    """The name of the split that is evaluated, for a folder."""
    data = settings.DATA_CONFIG
    return str((data.get("DATA_SPLIT") or {}).get("test", data.get("EVAL_SPLIT", "test")))


def has_whole_clouds(settings: Any) -> bool:
    """Is this the configuration of a classifier or segmenter of whole clouds, not of a detector of scenes?"""
    return "POINT_CLOUD_RANGE" not in settings.DATA_CONFIG


def recall_options(settings: Any) -> dict[str, Any]:
    """Options of an evaluation that stand with the model: POST_PROCESSING.RECALL_THRESH_LIST."""
    thresholds = settings.MODEL.get("POST_PROCESSING", {}).get("RECALL_THRESH_LIST")
    return {"recall_thresholds": list(thresholds)} if thresholds else {}
