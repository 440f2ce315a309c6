"""The thread pool: the same results for any thread count, exceptions, and forks."""

import multiprocessing
import threading

import numpy as np
import pytest
import torch
from ops_cases import generator, lidar_cloud, random_boxes

from pcdet.ops.ball_query import ball_query, ball_query_stack
from pcdet.ops.furthest_point_sampling import furthest_point_sample
from pcdet.ops.grouping import group_points, group_rows
from pcdet.ops.iou3d import boxes_iou3d, boxes_iou_bev
from pcdet.ops.nms import nms_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index, points_in_boxes_mask
from pcdet.ops.threads import parallel_for
from pcdet.ops.three_nn import three_interpolate, three_nn_stack
from pcdet.ops.voxel_query import voxel_query
from pcdet.ops.voxelize import voxelize


@pytest.fixture(autouse=True)
def threads():
    """Set torch's thread count; it is put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def every_operator():
    boxes, cloud = random_boxes(200, spread=20), lidar_cloud(6000)
    clouds = torch.stack([cloud[:3000], cloud[3000:]])
    sample = furthest_point_sample(clouds, 100)
    centres = clouds.gather(1, sample[..., None].expand(-1, -1, 3))
    index, count = ball_query(clouds, centres, 1.0, 16)
    features = torch.randn(2, 3000, 8, generator=generator()).requires_grad_()
    grouped = group_points(features, index)
    grouped.square().sum().backward()
    counts, few = torch.tensor([4000, 2000]), torch.tensor([100, 300])
    distance, nearest = three_nn_stack(cloud, counts, cloud[:400], few)
    rows = torch.randn(400, 200, generator=generator()).requires_grad_()
    interpolated = three_interpolate(rows, nearest, distance.clamp(max=9))
    interpolated.square().sum().backward()
    shares = torch.randn(40, 200, generator=generator()).requires_grad_()  # many values a row: summed in parts
    group_rows(shares, nearest % 40).square().sum().backward()
    cells = torch.cat([torch.zeros(6000, 1), cloud.floor() + 100], dim=1).long()
    voxels = cells.unique(dim=0)
    voxels = voxel_query(voxels, voxels[:, 1:].float() - 99.5, (200,) * 3, 1, cloud, cells, (1, 1, 1), 1.2, 5)
    return (
        *ball_query_stack(cloud, counts, cloud[:400], few, 0.8, 16),
        *voxels,
        distance,
        nearest,
        interpolated.detach(),
        rows.grad,
        shares.grad,
        sample,
        index,
        count,
        grouped.detach(),
        features.grad,
        boxes_iou_bev(boxes, boxes),
        boxes_iou3d(boxes, boxes),
        nms_bev(boxes, boxes[:, 3], 0.1),
        points_in_boxes_mask(cloud, boxes),
        points_in_boxes_index(cloud, boxes),
        *voxelize(cloud, [0, -40, -3, 70, 40, 1], [0.2, 0.2, 4], [350, 400, 1], 5, 4000),
    )


def test_results_do_not_depend_on_the_thread_count(threads):
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(every_operator())
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def fill(start, stop, out, names):
    names.add(threading.current_thread().name)
    out[start:stop] += np.arange(start, stop)


@pytest.mark.parametrize("n, chunk", [(0, 4), (1, 4), (10, 4), (8, 4), (1000, 1)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_index_is_visited_once(threads, n, chunk, count):
    threads(count)
    out = np.zeros(n)
    parallel_for(fill, n, out, set(), chunk=chunk)
    assert out.tolist() == list(range(n))


def test_one_piece_or_one_thread_stays_in_the_calling_thread(threads):
    names = set()
    parallel_for(fill, 100, np.zeros(100), names, chunk=100)
    threads(1)
    parallel_for(fill, 100, np.zeros(100), names, chunk=1)
    assert names == {threading.current_thread().name}


def test_an_exception_in_a_piece_is_raised_by_the_call():
    def kernel(start, stop):
        if start >= 5:
            raise ZeroDivisionError(start)

    with pytest.raises(ZeroDivisionError):
        parallel_for(kernel, 10)


def test_a_parallel_for_inside_another_does_not_hang():
    out = np.zeros((20, 50))

    def outer(start, stop):
        for row in range(start, stop):
            parallel_for(fill, 50, out[row], set())

    parallel_for(outer, 20)
    assert (out == np.arange(50)).all()


POINTS, BOXES = lidar_cloud(5000).numpy(), random_boxes(40, spread=20).numpy()


def array_operators():
    """What a data loader's worker calls."""
    voxels = voxelize(POINTS, [0, -40, -3, 70, 40, 1], [0.2, 0.2, 4], [350, 400, 1], 5, 4000)
    return [points_in_boxes_mask(POINTS, BOXES), points_in_boxes_index(POINTS, BOXES), *voxels]


def in_child(queue):
    torch.set_num_threads(2)  # so that the pool is used in the child as well
    parallel_for(fill, 1000, np.zeros(1000), set())
    queue.put(array_operators())


def test_kernels_work_in_children_forked_after_the_parent_used_them():
    expected = every_operator() and array_operators()
    parallel_for(fill, 100, np.zeros(100), set())  # the parent's pool exists and has run
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=in_child, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    results = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(timeout=60)
        assert child.exitcode == 0
    for found in results:
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


class Frames(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return array_operators()[:2]


def test_kernels_work_in_data_loader_workers():
    every_operator()
    loader = torch.utils.data.DataLoader(Frames(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    for mask, index in loader:
        assert np.array_equal(mask, array_operators()[0]) and np.array_equal(index, array_operators()[1])
