"""PointNet++ written twice in the plainest way, with the names of elsewhere: as functions of a TensorFlow checkpoint's
arrays, and as modules in the style of the common PyTorch port. Only what evaluation does."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Sizes(NamedTuple):
    """A model of either source. ``multi`` tells which of two functions built the levels."""

    multi: bool
    levels: list[tuple[int, list[float], list[int], list[list[int]]]]  # centres, radii, neighbours, MLPs
    whole: list[int] | None  # MLP of the level over the whole cloud
    carried: list[list[int]]  # MLPs of the propagations; none for a classifier
    hidden: list[int]
    classes: int
    features: int  # columns of a point that enter the first level beside its offset
    categories: int  # 0: the last propagation sees no category
    own: bool  # does the last propagation see the points' own coordinates and features?


def sizes_of(settings: Any, columns: int, classes: int, categories: int, also_coordinates: bool) -> Sizes:
    """The sizes that a YAML of ours describes."""
    backbone = settings.MODEL.BACKBONE_3D
    block, single = backbone.SA_CONFIG, backbone.NAME == "PointNet2SSG"
    rows = zip(block.NPOINTS, block.RADIUS, block.NSAMPLE, block.MLPS[: len(block.NPOINTS)], strict=True)
    levels = [(n, [r], [g], [m]) if single else (n, list(r), list(g), list(m)) for n, r, g, m in rows]
    head = settings.MODEL.get("CLS_HEAD") or settings.MODEL.get("SEG_HEAD")
    skip = list(backbone.get("LAST_SKIP", []))
    return Sizes(
        multi=any(len(level[1]) > 1 for level in levels),
        levels=levels,
        whole=block.MLPS[-1] if single else backbone.get("GLOBAL_MLP"),
        carried=list(backbone.get("FP_MLPS", [])),
        hidden=list(head.HIDDEN),
        classes=classes,
        features=columns if also_coordinates else columns - 3,
        categories=categories if "category" in skip else 0,
        own="coordinates" in skip,
    )


def furthest(points: Tensor, count: int) -> Tensor:
    """(N, 3) -> (count,) from point 0."""
    chosen, nearest = [0], torch.full((len(points),), torch.inf)
    while len(chosen) < count:
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
        chosen.append(int(nearest.argmax()))
    return torch.tensor(chosen)


def neighbours(points: Tensor, centre: Tensor, radius: float, count: int) -> Tensor:
    """(N, 3), (3,) -> (count,): the first ones inside, the first repeated."""
    inside = torch.nonzero((points - centre).norm(dim=1) < radius).flatten()[:count]
    return torch.cat([inside, inside[:1].expand(count - len(inside))])


def grouped(points: Tensor, features: Tensor | None, centres: Tensor, radius: float, count: int, first: bool) -> Tensor:
    """(S, G, 3 + C): offsets and features of the neighbours in one cloud; ``first`` puts the features first."""
    idx = torch.stack([neighbours(points, centre, radius, count) for centre in centres])
    offset = points[idx] - centres[:, None]
    if features is None:
        return offset
    return torch.cat([features[idx], offset] if first else [offset, features[idx]], dim=-1)


def three_nearest(points: Tensor, known: Tensor, features: Tensor) -> Tensor:
    """(N, 3), (M, 3), (M, K) -> (N, K), weights by inverse squared distance."""
    square, idx = (points[:, None] - known).square().sum(2).topk(3, dim=1, largest=False)
    weight = 1 / square.clamp(min=1e-10)
    return ((weight / weight.sum(1, keepdim=True))[..., None] * features[idx]).sum(1)


# ---- TensorFlow: variables by name, channels last


def tensorflow_arrays(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """What ``tf.train.load_checkpoint`` would give for such a model."""
    draw, out = np.random.default_rng(seed), {}

    def layer(name: str, width: int, new: int, ones: int, norm: bool = True) -> int:
        out[f"{name}/weights"] = draw.normal(0, width**-0.5, (*[1] * ones, width, new)).astype(np.float32)
        out[f"{name}/biases"] = draw.normal(0, 0.3, new).astype(np.float32)
        for key in ("beta", "gamma", "moving_mean") if norm else ():
            out[f"{name}/bn/{key}"] = draw.normal(key == "gamma", 0.3, new).astype(np.float32)
        if norm:
            out[f"{name}/bn/moving_variance"] = draw.uniform(0.3, 1.5, new).astype(np.float32)
        return new

    width, widths = sizes.features, []
    own = sizes.categories + (3 + sizes.features if sizes.own else 0)
    for k, (_, _, _, mlps) in enumerate(sizes.levels, 1):
        ends = []
        for i, mlp in enumerate(mlps):
            last = 3 + width
            for j, new in enumerate(mlp):
                last = layer(f"layer{k}/conv{i}_{j}" if sizes.multi else f"layer{k}/conv{j}", last, new, 2)
            ends.append(last)
        width = sum(ends)
        widths.append(width)
    if sizes.whole:
        last = 3 + width
        for j, new in enumerate(sizes.whole):
            last = layer(f"layer{len(sizes.levels) + 1}/conv{j}", last, new, 2)
        width = last
    skips = [own, *widths][: len(sizes.carried)][::-1]
    for k, (skip, mlp) in enumerate(zip(skips, sizes.carried, strict=True), 1):
        width += skip
        for j, new in enumerate(mlp):
            width = layer(f"fa_layer{k}/conv_{j}", width, new, 2)
    for k, new in enumerate(sizes.hidden, 1):
        width = layer(f"fc{k}", width, new, 1 if sizes.carried else 0)
    layer(f"fc{len(sizes.hidden) + 1}", width, sizes.classes, 1 if sizes.carried else 0, norm=False)
    return out


def tensorflow_logits(arrays: dict[str, np.ndarray], sizes: Sizes, cloud: Tensor, category: int | None) -> Tensor:
    """(N, 3 + C) -> (K,) or (N, K)."""

    def layer(rows: Tensor, name: str, norm: bool = True) -> Tensor:
        value = {key: torch.from_numpy(arrays[f"{name}/{key}"]) for key in ("weights", "biases")}
        rows = rows @ value["weights"].reshape(value["weights"].shape[-2:]) + value["biases"]
        if not norm:
            return rows
        beta, gamma, mean, var = (
            torch.from_numpy(arrays[f"{name}/bn/{key}"]) for key in ("beta", "gamma", "moving_mean", "moving_variance")
        )
        return torch.relu((rows - mean) / (var + 0.001).sqrt() * gamma + beta)

    points, features = cloud[:, :3], cloud[:, 3:] if cloud.shape[1] > 3 else None
    one_hot = torch.zeros(len(cloud), sizes.categories)
    if sizes.categories:
        one_hot[:, category] = 1
    own = torch.cat([one_hot, cloud] if sizes.own else [one_hot], dim=1)
    kept = [(points, own)]
    for k, (count, radii, numbers, mlps) in enumerate(sizes.levels, 1):
        centres, scales = points[furthest(points, count)], []
        for i, (radius, number, mlp) in enumerate(zip(radii, numbers, mlps, strict=True)):
            rows = grouped(points, features, centres, radius, number, first=sizes.multi)
            for j in range(len(mlp)):
                rows = layer(rows, f"layer{k}/conv{i}_{j}" if sizes.multi else f"layer{k}/conv{j}")
            scales.append(rows.max(1).values)
        points, features = centres, torch.cat(scales, dim=1)
        kept.append((points, features))
    if sizes.whole:
        features = torch.cat([points, features], dim=1)
        for j in range(len(sizes.whole)):
            features = layer(features, f"layer{len(sizes.levels) + 1}/conv{j}")
        features = features.max(0, keepdim=True).values
        kept.append((None, features))
    for k, mlp in enumerate(sizes.carried, 1):
        known = kept.pop()[0]
        points, skip = kept[-1]
        carried = features.expand(len(points), -1) if known is None else three_nearest(points, known, features)
        features = torch.cat([carried, skip], dim=1)
        for j in range(len(mlp)):
            features = layer(features, f"fa_layer{k}/conv_{j}")
    for k in range(1, len(sizes.hidden) + 1):
        features = layer(features, f"fc{k}")
    logits = layer(features, f"fc{len(sizes.hidden) + 1}", norm=False)
    return logits if sizes.carried else logits[0]


# ---- the port: modules, channels in the second place


class PortAbstraction(nn.Module):
    """One scale; without centres it describes the whole cloud."""

    def __init__(self, count: int | None, radius: float | None, number: int | None, width: int, mlp: list[int]):
        super().__init__()
        self.count, self.radius, self.number = count, radius, number
        pairs = list(zip([width, *mlp[:-1]], mlp, strict=True))
        self.mlp_convs = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairs)
        self.mlp_bns = nn.ModuleList(nn.BatchNorm2d(b) for _, b in pairs)

    def forward(self, xyz: Tensor, features: Tensor | None) -> tuple[Tensor | None, Tensor]:  # (B, 3, N), (B, C, N)
        if self.count is None:
            centres, image = None, torch.cat([xyz, features], dim=1)[..., None]  # (B, 3 + C, N, 1)
        else:
            centres, image = port_group(xyz, features, self.count, self.radius, self.number, first=False)
        for conv, bn in zip(self.mlp_convs, self.mlp_bns, strict=True):
            image = F.relu(bn(conv(image)))
        return centres, image.amax(2)


class PortMultiScale(nn.Module):
    """Several scales, whose features come before the offsets."""

    def __init__(self, count: int, radii: list[float], numbers: list[int], width: int, mlps: list[list[int]]):
        super().__init__()
        self.count, self.radii, self.numbers = count, radii, numbers
        self.conv_blocks, self.bn_blocks = nn.ModuleList(), nn.ModuleList()
        for mlp in mlps:
            pairs = list(zip([width + 3, *mlp[:-1]], mlp, strict=True))
            self.conv_blocks.append(nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairs))
            self.bn_blocks.append(nn.ModuleList(nn.BatchNorm2d(b) for _, b in pairs))

    def forward(self, xyz: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        scales = []
        for i, (convs, bns) in enumerate(zip(self.conv_blocks, self.bn_blocks, strict=True)):
            centres, image = port_group(xyz, features, self.count, self.radii[i], self.numbers[i], first=True)
            for conv, bn in zip(convs, bns, strict=True):
                image = F.relu(bn(conv(image)))
            scales.append(image.amax(2))
        return centres, torch.cat(scales, dim=1)


def port_group(xyz: Tensor, features: Tensor | None, count: int, radius: float, number: int, first: bool) -> Any:
    """(B, 3, N), (B, C, N) -> centres (B, 3, S) and neighbours (B, 3 + C, G, S)."""
    centres, images = [], []
    for b, points in enumerate(xyz.transpose(1, 2)):
        chosen = points[furthest(points, count)]
        rows = grouped(points, None if features is None else features[b].T, chosen, radius, number, first)
        centres.append(chosen.T)
        images.append(rows.permute(2, 1, 0))
    return torch.stack(centres), torch.stack(images)


class PortPropagation(nn.Module):
    """The points' own features come before those that are carried to them."""

    def __init__(self, width: int, mlp: list[int]):
        super().__init__()
        pairs = list(zip([width, *mlp[:-1]], mlp, strict=True))
        self.mlp_convs = nn.ModuleList(nn.Conv1d(a, b, 1) for a, b in pairs)
        self.mlp_bns = nn.ModuleList(nn.BatchNorm1d(b) for _, b in pairs)

    def forward(self, xyz: Tensor, known: Tensor | None, own: Tensor, features: Tensor) -> Tensor:
        if known is None:
            carried = features.expand(-1, -1, xyz.shape[2])
        else:
            carried = torch.stack(
                [three_nearest(p.T, k.T, f.T).T for p, k, f in zip(xyz, known, features, strict=True)]
            )
        rows = torch.cat([own, carried], dim=1)
        for conv, bn in zip(self.mlp_convs, self.mlp_bns, strict=True):
            rows = F.relu(bn(conv(rows)))
        return rows


class PortModel(nn.Module):
    """A classifier (fc1, bn1 ...) or a segmenter (conv1, bn1 ...)."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        width, widths = sizes.features, []
        for k, (count, radii, numbers, mlps) in enumerate(sizes.levels, 1):
            if sizes.multi:
                level = PortMultiScale(count, radii, numbers, width, mlps)
            else:
                level = PortAbstraction(count, radii[0], numbers[0], width + 3, mlps[0])
            self.add_module(f"sa{k}", level)
            width = sum(mlp[-1] for mlp in mlps)
            widths.append(width)
        if sizes.whole:
            self.add_module(f"sa{len(widths) + 1}", PortAbstraction(None, None, None, width + 3, sizes.whole))
            width = sizes.whole[-1]
        own = sizes.categories + (3 + sizes.features if sizes.own else 0)
        skips = [own, *widths][: len(sizes.carried)][::-1]
        for k, skip, mlp in zip(range(len(skips), 0, -1), skips, sizes.carried, strict=True):
            self.add_module(f"fp{k}", PortPropagation(width + skip, mlp))
            width = mlp[-1]
        name, layer = ("conv", lambda a, b: nn.Conv1d(a, b, 1)) if sizes.carried else ("fc", nn.Linear)
        for k, new in enumerate(sizes.hidden, 1):
            self.add_module(f"{name}{k}", layer(width, new))
            self.add_module(f"bn{k}", nn.BatchNorm1d(new))
            width = new
        self.add_module(f"{name}{len(sizes.hidden) + 1}", layer(width, sizes.classes))

    def forward(self, clouds: Tensor, categories: Tensor | None) -> Tensor:  # (B, C, N) -> (B, K) or (B, K, N)
        sizes, xyz = self.sizes, clouds[:, :3]
        features = clouds if sizes.features == clouds.shape[1] else clouds[:, 3:] if clouds.shape[1] > 3 else None
        own = clouds[:, :0]
        if sizes.categories:
            own = F.one_hot(categories, sizes.categories).float()[..., None].expand(-1, -1, xyz.shape[2])
        if sizes.own:
            own = torch.cat([own, xyz, features], dim=1)
        kept = [(xyz, own)]
        for k in range(1, len(sizes.levels) + bool(sizes.whole) + 1):
            xyz, features = getattr(self, f"sa{k}")(xyz, features)
            kept.append((xyz, features))
        for k in range(len(sizes.carried), 0, -1):
            known = kept.pop()[0]
            features = getattr(self, f"fp{k}")(kept[-1][0], known, kept[-1][1], features)
        if not sizes.carried:
            features = features[:, :, 0]
        name = "conv" if sizes.carried else "fc"
        for k in range(1, len(sizes.hidden) + 1):
            features = F.relu(getattr(self, f"bn{k}")(getattr(self, f"{name}{k}")(features)))
        return getattr(self, f"{name}{len(sizes.hidden) + 1}")(features)


def port_model(sizes: Sizes, seed: int = 0) -> PortModel:
    """With statistics, affine parameters and weights unlike those of the beginning."""
    torch.manual_seed(seed)
    model = PortModel(sizes).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight.normal_(1, 0.3)
                module.bias.normal_(0, 0.3)
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.3, 1.5)
                module.num_batches_tracked.fill_(7)
            elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
                module.weight.normal_(0, module.weight[0].numel() ** -0.5)  # wide enough that clouds differ
    return model
