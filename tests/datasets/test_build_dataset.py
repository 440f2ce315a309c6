"""The door of the data sets."""

import importlib

import pytest

from pcdet import datasets
from pcdet.datasets import DATASETS, build_dataset


def test_every_home_registers_its_data_set():
    for name, module in datasets._HOMES.items():
        importlib.import_module(module)
        assert name in DATASETS


def test_an_unknown_data_set_is_named_with_the_nearest(data_settings):
    with pytest.raises(KeyError, match="No dataset is called 'KittyDataset'. Did you mean 'KittiDataset'"):
        build_dataset({**data_settings, "DATASET": "KittyDataset"}, ["Car"], training=True)


def test_the_context_cannot_be_set_in_yaml(small_kitti, data_settings):
    with pytest.raises(ValueError, match="takes no option TRAINING"):
        build_dataset({**data_settings, "TRAINING": False}, ["Car"], training=True, root=small_kitti)
