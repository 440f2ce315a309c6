"""Checks of a data set before training: small functions over what was measured of each frame."""

from pcdet.datasets.checks.problem import Level, Problem, worst_first
from pcdet.datasets.checks.run import Checked, check_data, summary
from pcdet.datasets.checks.source import DataSource, find_source

__all__ = ["Checked", "DataSource", "Level", "Problem", "check_data", "find_source", "summary", "worst_first"]
