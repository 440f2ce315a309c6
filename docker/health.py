"""Is the installation of this image whole? Exit status 0 if an operator computes what it should, on a GPU if asked."""

import argparse

import torch

from pcdet.ops.iou3d import boxes_iou_bev


def main() -> int:
    """Two squares of side 2, one shifted by 1, share a third of their union."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="the GPU must be there and compute it")
    given = parser.parse_args()
    square = torch.tensor([[0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0]], device="cuda" if given.gpu else "cpu")
    shifted = square + torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], device=square.device)
    overlap = boxes_iou_bev(square, shifted).item()
    return 0 if abs(overlap - 1 / 3) < 1e-5 else 1


if __name__ == "__main__":
    raise SystemExit(main())
