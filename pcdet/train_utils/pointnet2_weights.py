"""Weights of PointNet++ from elsewhere: the published TensorFlow code's, and the common PyTorch port's.

The names of one layer, K a level counted from 1, J a layer and I a scale counted from 0:

=========================  ==========================  ===============================  ============================
ours                       TensorFlow                  PyTorch port                     columns of its first matrix
=========================  ==========================  ===============================  ============================
``sa_modules`` one scale   ``layerK/convJ``            ``saK.mlp_convs.J``              offset, features
``sa_modules`` scales      ``layerK/convI_J``          ``saK.conv_blocks.I.J``          features, offset
``global_module``          ``layerK/convJ``            ``saK.mlp_convs.J``              coordinates, features
``fp_modules``             ``fa_layerK/conv_J``        ``fpK.mlp_convs.J``              carried, own | own, carried
``cls_head``               ``fcK``                     ``fcK``, ``bnK``
``seg_head``               ``fcK``                     ``convK``, ``bnK``
=========================  ==========================  ===============================  ============================

TensorFlow's layer holds ``weights``, ``biases`` and ``bn/{gamma,beta,moving_mean,moving_variance}``; its propagations
count from the deepest level (the last one may be called ``fp_layerK``), the port's from the points. The port's norms
are called ``mlp_bns`` and ``bn_blocks``. The own features of the last propagation are category, coordinates, features.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pcdet.layers.cloud_propagation import CloudPropagation
from pcdet.layers.set_abstraction import MultiScaleAbstraction, SetAbstraction, SharedMLP
from pcdet.models.backbones_3d.pointnet2_multi_scale import PointNet2MultiScale
from pcdet.models.backbones_3d.pointnet2_segmentation import PointNet2Segmentation
from pcdet.models.backbones_3d.pointnet2_ssg import PointNet2SSG

Source = Literal["tensorflow", "port"]

TENSORFLOW_EPS = 0.001  # of contrib's batch_norm, which adds it to the variance

# What a TensorFlow checkpoint holds beside the model: the optimizer's moments and the counters.
_NOT_WEIGHTS = re.compile(r"(.*/)?(Adam(_1)?|Momentum|beta[12]_power(_\d+)?|Variable(_\d+)?|global_step)")
_SPEAKING = {
    "tensorflow": re.compile(r"(layer|fa_layer|fp_layer)\d+/conv"),
    "port": re.compile(r"(sa|fp)\d+\.(mlp_convs|conv_blocks)\."),
}
_KEYS_OF_PORTS = ("model_state_dict", "state_dict")

Columns = Sequence[tuple[str, int]]  # parts of a row, and how wide each is


class Place(NamedTuple):
    """Where a layer of a model stands there."""

    linear: str
    norm: str
    columns: Columns | None = None  # in their order; None where it is ours
    ours: Columns = ()
    neighbours: int = 0  # of a ball


class Matched(NamedTuple):
    """A linear layer of a model, the norm behind it, and their names there."""

    name: str
    linear: nn.Linear
    norm_name: str
    norm: nn.BatchNorm1d | None
    place: Place


def source_of(names: Sequence[str]) -> Source | None:
    """Whose names these are; ``None`` where they are neither's."""
    for source, pattern in _SPEAKING.items():
        if any(pattern.search(name) for name in names):
            return source
    return None


def read_arrays(path: str | Path) -> dict[str, Tensor]:
    """The arrays of an NPZ file as tensors. Raises ``FileNotFoundError``, and ``ValueError`` where it is not one."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name.removesuffix(":0"): torch.from_numpy(stored[name]) for name in stored.files}
    except (ValueError, OSError, TypeError, AttributeError) as error:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"The file {path} does not exist") from error
        raise ValueError(f"{path} is not an NPZ file of numbers: {error}") from error


def foreign_weights(checkpoint: Mapping[str, object]) -> dict[str, Tensor] | None:
    """The weights of a checkpoint with the names of either source, else ``None``."""
    inner = next((checkpoint[key] for key in _KEYS_OF_PORTS if isinstance(checkpoint.get(key), dict)), checkpoint)
    state = {str(name).removeprefix("module."): value for name, value in inner.items() if isinstance(value, Tensor)}
    return state if source_of(list(state)) else None


def pointnet2_state(model: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """The state of one of our PointNet++ models from the weights of another implementation.

    Kernels become matrices, columns change their places where the two concatenate in another order, and TensorFlow's
    moving variance grows by the difference of what the two add to it, so that evaluation gives equal numbers.

    Raises ``ValueError`` listing every name that is missing, unknown or of another shape, and where the model cannot
    be the one that was trained there.
    """
    source = source_of(list(weights))
    if source is None:
        raise ValueError(f"{path} has no name of either source: {', '.join(sorted(weights)[:5])}, ...")
    weights = {name: value for name, value in weights.items() if not _NOT_WEIGHTS.fullmatch(name)}
    _require_same_columns(model, source, path)
    read = _TensorFlow(weights) if source == "tensorflow" else _Port(weights)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for layer in matched(model, read):
        state.update(read.layer(layer))
    unknown = sorted(set(weights) - read.used)
    if read.problems or unknown:
        rows = [*read.problems, *(f"  unknown to the model    {name}" for name in unknown)]
        raise ValueError(f"{path} ({source}) does not fit the model of the configuration:\n" + "\n".join(rows))
    return state


def _require_same_columns(model: nn.Module, source: Source, path: str | Path) -> None:
    """Both give equal shapes, so that only the names could tell."""
    backbone = getattr(model, "backbone_3d", None)
    if not isinstance(backbone, PointNet2SSG | PointNet2MultiScale | PointNet2Segmentation):
        raise ValueError(f"{path} holds a PointNet++; the configuration's BACKBONE_3D is a {type(backbone).__name__}")
    if not isinstance(backbone, PointNet2Segmentation):
        return
    wanted = source == "port"
    if backbone.coordinates_as_features != wanted:
        raise ValueError(
            f"{path}: in the segmentation models of this source ({source}) the coordinates are "
            f"{'also' if wanted else 'not'} among the features of a point; add --set "
            f"MODEL.BACKBONE_3D.COORDINATES_AS_FEATURES {wanted}"
        )


class _Reader:
    """Takes layers out of a file's weights, and notes what is wrong instead of stopping at the first."""

    def __init__(self, weights: Mapping[str, Tensor]):
        self.weights = weights
        self.used: set[str] = set()
        self.problems: list[str] = []

    def has(self, prefix: str) -> bool:
        """Is there any weight below a prefix?"""
        return any(name.startswith(prefix) for name in self.weights)

    def take(self, name: str) -> Tensor | None:
        """A weight as float32, or ``None`` with a note."""
        if name not in self.weights:
            self.problems.append(f"  missing in the file     {name}")
            return None
        self.used.add(name)
        return self.weights[name].float()

    def vector(self, name: str, size: int) -> Tensor:
        """A weight (size,); NaN where it is missing or has another shape, which is noted."""
        value = self.take(name)
        if value is None or tuple(value.shape) != (size,):
            if value is not None:
                self._misfit(name, tuple(value.shape), (size,))
            return torch.full((size,), torch.nan)
        return value.clone()

    def matrix(self, name: str, linear: nn.Linear, place: Place, *, transposed: bool) -> Tensor:
        """A kernel as the matrix (O, I) of our layer; NaN where it is missing or has another shape."""
        shape = (linear.in_features, linear.out_features) if transposed else tuple(linear.weight.shape)
        value = self.take(name)
        if value is None:
            return torch.full(linear.weight.shape, torch.nan)
        sizes = tuple(value.shape)
        ones = len(sizes) - 2
        flat = sizes[ones:] if transposed else sizes[:2]
        if flat != shape or value.numel() != linear.weight.numel():
            self._misfit(name, sizes, shape)
            if transposed and place.neighbours and flat[:1] == (place.neighbours,):
                self.problems.append(
                    f"    its {place.neighbours} inputs are the neighbours of a ball: trained with the published "
                    "multi-scale classifier as it is, which convolves over these instead of the channels, so that "
                    "no PointNet++ has such weights"
                )
            return torch.full(linear.weight.shape, torch.nan)
        value = value.reshape(shape).T if transposed else value.reshape(shape)
        if place.columns is not None:
            value = value[:, _moved(place.columns, place.ours)]
        return value.clone(memory_format=torch.contiguous_format)

    def _misfit(self, name: str, theirs: tuple[int, ...], ours: tuple[int, ...]) -> None:
        self.problems.append(f"  other shape             {name}: {theirs} in the file, {ours} wanted")


class _TensorFlow(_Reader):
    """``layer1/conv0/weights`` and so on."""

    known_first = True

    def ball(self, level: int, scale: int, layer: int, single: bool) -> tuple[str, str]:
        name = f"layer{level}/conv{layer}" if single else f"layer{level}/conv{scale}_{layer}"
        return name, f"{name}/bn"

    def has_single(self, level: int) -> bool:
        return not self.has(f"layer{level}/conv0_")

    def propagation(self, position: int, count: int, layer: int) -> tuple[str, str]:
        found = next((p for p in ("fa", "fp") if self.has(f"{p}_layer{position + 1}/")), "fa")
        name = f"{found}_layer{position + 1}/conv_{layer}"
        return name, f"{name}/bn"

    def head(self, position: int, dense: bool) -> tuple[str, str]:
        return f"fc{position}", f"fc{position}/bn"

    def layer(self, layer: Matched) -> dict[str, Tensor]:
        """Our names and values of a layer."""
        name, linear, norm_name, norm, place = layer
        out = {
            f"{name}.weight": self.matrix(f"{place.linear}/weights", linear, place, transposed=True),
            f"{name}.bias": self.vector(f"{place.linear}/biases", linear.out_features),
        }
        if norm is not None:
            theirs = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean"}
            for own, other in theirs.items():
                out[f"{norm_name}.{own}"] = self.vector(f"{place.norm}/{other}", norm.num_features)
            variance = self.vector(f"{place.norm}/moving_variance", norm.num_features)
            out[f"{norm_name}.running_var"] = variance + (TENSORFLOW_EPS - norm.eps)
        return out


class _Port(_Reader):
    """``sa1.mlp_convs.0.weight`` and so on."""

    known_first = False

    def ball(self, level: int, scale: int, layer: int, single: bool) -> tuple[str, str]:
        if single:
            return f"sa{level}.mlp_convs.{layer}", f"sa{level}.mlp_bns.{layer}"
        return f"sa{level}.conv_blocks.{scale}.{layer}", f"sa{level}.bn_blocks.{scale}.{layer}"

    def has_single(self, level: int) -> bool:
        return not self.has(f"sa{level}.conv_blocks.")

    def propagation(self, position: int, count: int, layer: int) -> tuple[str, str]:
        return f"fp{count - position}.mlp_convs.{layer}", f"fp{count - position}.mlp_bns.{layer}"

    def head(self, position: int, dense: bool) -> tuple[str, str]:
        return f"{'conv' if dense else 'fc'}{position}", f"bn{position}"

    def layer(self, layer: Matched) -> dict[str, Tensor]:
        """Our names and values of a layer."""
        name, linear, norm_name, norm, place = layer
        out = {
            f"{name}.weight": self.matrix(f"{place.linear}.weight", linear, place, transposed=False),
            f"{name}.bias": self.vector(f"{place.linear}.bias", linear.out_features),
        }
        if norm is not None:
            for own in ("weight", "bias", "running_mean", "running_var"):
                out[f"{norm_name}.{own}"] = self.vector(f"{place.norm}.{own}", norm.num_features)
            counter = f"{place.norm}.num_batches_tracked"
            if counter in self.weights:
                self.used.add(counter)
                out[f"{norm_name}.num_batches_tracked"] = self.weights[counter].clone()
        return out


def matched(model: nn.Module, read: _TensorFlow | _Port) -> Iterator[Matched]:
    """Every layer of a model, with its place in a file."""
    backbone = model.backbone_3d
    levels = list(backbone.sa_modules)
    for i, level in enumerate(levels):
        yield from _of_level(f"backbone_3d.sa_modules.{i}", level, i + 1, read)
    if backbone.global_module is not None:
        names = [read.ball(len(levels) + 1, 0, j, True) for j in range(len(backbone.global_module.mlp.linears))]
        places = [Place(*pair) for pair in names]
        yield from _of_mlp("backbone_3d.global_module.mlp", backbone.global_module.mlp, places)
    if isinstance(backbone, PointNet2Segmentation):
        yield from _of_propagations(backbone, read)
    yield from _of_head(model, read)


def _of_level(
    name: str, level: SetAbstraction | MultiScaleAbstraction, number: int, read: _TensorFlow | _Port
) -> Iterator[Matched]:
    if isinstance(level, SetAbstraction):
        scales = [(f"{name}.mlp", level.mlp, level.num_neighbours)]
    else:
        sizes = [size for _, size in level.balls]
        scales = [(f"{name}.mlps.{i}", *pair) for i, pair in enumerate(zip(level.mlps, sizes, strict=True))]
    single = len(scales) == 1 and read.has_single(number)
    for scale, (mlp_name, mlp, neighbours) in enumerate(scales):
        parts = [("offset", 3), ("features", mlp.linears[0].in_features - 3)]
        theirs = parts if single else parts[::-1]
        ours = parts[::-1] if level.features_first else parts
        names = [read.ball(number, scale, j, single) for j in range(len(mlp.linears))]
        places = [Place(*names[0], theirs, ours, neighbours), *(Place(*pair) for pair in names[1:])]
        yield from _of_mlp(mlp_name, mlp, places)


def _of_propagations(backbone: PointNet2Segmentation, read: _TensorFlow | _Port) -> Iterator[Matched]:
    count = len(backbone.fp_modules)
    for i, module in enumerate(backbone.fp_modules):
        own = _own_columns(backbone) if i == count - 1 else None
        ours, theirs = _columns_of(module, own, known_first=True), _columns_of(module, own, read.known_first, True)
        names = [read.propagation(i, count, j) for j in range(len(module.mlp.linears))]
        places = [Place(*names[0], theirs, ours), *(Place(*pair) for pair in names[1:])]
        yield from _of_mlp(f"backbone_3d.fp_modules.{i}.mlp", module.mlp, places)


def _own_columns(backbone: PointNet2Segmentation) -> Columns:
    """What the points bring to the last propagation, in our order."""
    features = backbone.sa_modules[0].mlps[0].linears[0].in_features - 3
    sizes = {"category": backbone.num_categories, "coordinates": 3, "features": features}
    return [(part, sizes[part]) for part in backbone.last_skip]


def _columns_of(module: CloudPropagation, own: Columns | None, known_first: bool, sort: bool = False) -> Columns:
    carried = [("carried", module.known_channels)]
    if own is None:
        own = [("own", module.mlp.linears[0].in_features - module.known_channels)]
    own = sorted(own) if sort else own  # category, coordinates, features: the alphabet's order is theirs
    return [*carried, *own] if known_first else [*own, *carried]


def _of_mlp(name: str, mlp: SharedMLP, places: Sequence[Place]) -> Iterator[Matched]:
    for j, (linear, norm, place) in enumerate(zip(mlp.linears, mlp.norms, places, strict=True)):
        yield Matched(f"{name}.linears.{j}", linear, f"{name}.norms.{j}", norm, place)


def _of_head(model: nn.Module, read: _TensorFlow | _Port) -> Iterator[Matched]:
    layers = list(getattr(model, model.head).layers)
    linears = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    for position, i in enumerate(linears, start=1):
        norm = layers[i + 1] if i + 1 < len(layers) else None
        place = Place(*read.head(position, model.head == "seg_head"))
        yield Matched(f"{model.head}.layers.{i}", layers[i], f"{model.head}.layers.{i + 1}", norm, place)


def _moved(theirs: Columns, ours: Columns) -> Tensor:
    """(I,) which of their columns each of ours is."""
    starts, position = {}, 0
    for part, width in theirs:
        starts[part] = position
        position += width
    return torch.cat([torch.arange(starts[part], starts[part] + width) for part, width in ours])
