"""Simulated data in the layouts of the real data sets, so that the same readers serve both."""

from pcdet.datasets.synthetic.custom import simulate_custom
from pcdet.datasets.synthetic.shapes import simulate_modelnet, simulate_shapenetpart
from pcdet.datasets.synthetic.simulate import simulate_kitti

__all__ = ["simulate_custom", "simulate_kitti", "simulate_modelnet", "simulate_shapenetpart"]
