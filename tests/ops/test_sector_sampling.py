"""Furthest point sampling by sectors: shares of the samples, the border of the circle, recorded samples."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator, lidar_cloud

from pcdet.ops.furthest_point_sampling import furthest_point_sample, sector_furthest_point_sample


def on_circle(*degrees):
    angle = torch.tensor(degrees) * math.pi / 180
    return torch.stack([angle.cos(), angle.sin(), torch.zeros(len(degrees))], dim=1)


def test_by_hand():
    """Two sectors, right of the sensor first: azimuth -180 to 0 degrees, then 0 to 180."""
    points = on_circle(45.0, -135.0, 135.0, -45.0, 44.0, 46.0)
    assert sector_furthest_point_sample(points, 3, 2).tolist() == [1, 0, 2]  # ceil(2 / 6 * 3), ceil(4 / 6 * 3)


def test_every_sector_with_points_gives_at_least_one_and_at_most_all():
    points = on_circle(*[10.0] * 96, -170.0, -80.0, 100.0, 101.0)
    found = sector_furthest_point_sample(points, 10, 4)
    assert found[0] == 96 and found[1] == 97 and found[-1] in (98, 99)
    assert len(found) == 1 + 1 + 10 + 1  # a few more than 10
    assert sorted(sector_furthest_point_sample(points[96:], 400, 4).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("wanted", [1, 50, 333])
@pytest.mark.parametrize("sectors", [1, 6, 7])
def test_each_sector_is_sampled_as_a_cloud_of_its_own(wanted, sectors):
    points = lidar_cloud(900) * torch.tensor([1.0, 3.0, 1.0]) - torch.tensor([12.0, 0, 0])
    width = 2 * math.pi / sectors
    sector = ((torch.atan2(points[:, 1], points[:, 0]) + math.pi) / width).floor()
    expected = []
    for k in range(sectors):
        rows = (sector == k).nonzero()[:, 0]
        if len(rows):
            share = min(len(rows), math.ceil(len(rows) / 900 * wanted))
            expected.append(rows[furthest_point_sample(points[None, rows], share)[0]])
    assert torch.equal(sector_furthest_point_sample(points, wanted, sectors), torch.cat(expected))


def test_the_azimuth_pi_belongs_to_no_sector():
    """As in OpenPCDet; -0.0 in y has the azimuth -pi, of the first sector."""
    points = torch.tensor([[-5.0, 0.0, 0], [-4, -0.0, 0], [3, 0, 0]])
    assert sector_furthest_point_sample(points, 3, 6).tolist() == [1, 2]
    assert sector_furthest_point_sample(points[:1], 2, 6).tolist() == [0, 0]  # then all points are one sector


def test_empty_clouds_and_no_samples():
    assert sector_furthest_point_sample(torch.zeros(0, 3), 4, 6).tolist() == []
    found = sector_furthest_point_sample(torch.randn(20, 5, generator=generator()), 0, 6)
    assert found.tolist() == [] and found.dtype == torch.int64


def test_bad_arguments():
    points = torch.zeros(5, 3)
    with pytest.raises(ValueError, match=r"\(N, 3\+\)"):
        sector_furthest_point_sample(points[None], 2, 6)
    with pytest.raises(ValueError, match="num_samples"):
        sector_furthest_point_sample(points, -1, 6)
    with pytest.raises(ValueError, match="num_sectors"):
        sector_furthest_point_sample(points, 2, 0)


@pytest.mark.parametrize(
    "cloud, wanted, recorded", [("out_roi_points", 128, "out_sector_fps"), ("in_points", 300, "out_sector_fps_all")]
)
def test_recorded_samples(shared, cloud, wanted, recorded):
    data = np.load(shared / "oracles" / "ops" / "vsa_helpers.npz")
    found = sector_furthest_point_sample(torch.from_numpy(data[cloud]), wanted, 6)
    assert np.array_equal(data[cloud][found], data[recorded])
