"""Conventions of boxes by hand, and there and back."""

import itertools

import numpy as np
import pytest

from pcdet.structures.box_convention import ORDERS, ORIGINS, UNITS, ZEROS, BoxConvention

BOX = np.array([[1.0, 2.0, 3.0, 4.0, 2.0, 1.5, 0.5]])


@pytest.mark.parametrize(
    "options, box",
    [
        ({}, [1, 2, 3, 4, 2, 1.5, 0.5]),
        ({"origin": "bottom"}, [1, 2, 2.25, 4, 2, 1.5, 0.5]),
        ({"order": "wlh"}, [1, 2, 3, 2, 4, 1.5, 0.5]),
        ({"order": "hwl"}, [1, 2, 3, 1.5, 2, 4, 0.5]),
        ({"order": "hlw", "origin": "bottom"}, [1, 2, 2.25, 1.5, 4, 2, 0.5]),
        ({"unit": "deg"}, [1, 2, 3, 4, 2, 1.5, np.rad2deg(0.5)]),
        ({"clockwise": True}, [1, 2, 3, 4, 2, 1.5, -0.5]),
        ({"zero": "y"}, [1, 2, 3, 4, 2, 1.5, 0.5 - np.pi / 2]),
        ({"zero": "y", "clockwise": True}, [1, 2, 3, 4, 2, 1.5, np.pi / 2 - 0.5]),
        ({"zero": "-x", "unit": "deg"}, [1, 2, 3, 4, 2, 1.5, np.rad2deg(0.5) + 180]),
    ],
)
def test_one_box_in_several_conventions(options, box):
    np.testing.assert_allclose(BoxConvention(**options).to_lidar(np.array([box])), BOX, atol=1e-12)


def test_there_and_back_in_every_convention():
    rng = np.random.default_rng(0)
    boxes = np.column_stack([rng.normal(0, 9, (20, 3)), rng.uniform(0.5, 5, (20, 3)), rng.uniform(-3.1, 3.1, 20)])
    for origin, order, unit, zero, clockwise in itertools.product(ORIGINS, ORDERS, UNITS, ZEROS, (False, True)):
        convention = BoxConvention(origin, clockwise, order, unit, zero)
        np.testing.assert_allclose(convention.to_lidar(convention.from_lidar(boxes)), boxes, atol=1e-9)


def test_headings_are_wrapped_and_nothing_is_legal():
    turned = BOX.copy()
    turned[0, 6] += 4 * np.pi
    np.testing.assert_allclose(BoxConvention().to_lidar(turned), BOX, atol=1e-12)
    assert BoxConvention(unit="deg").to_lidar(np.zeros((0, 7))).shape == (0, 7)


@pytest.mark.parametrize("option", [{"origin": "top"}, {"order": "llh"}, {"unit": "grad"}, {"zero": "z"}])
def test_other_values_are_errors_that_list_the_known_ones(option):
    with pytest.raises(ValueError, match=f"BOX_CONVENTION.{next(iter(option))} is .* it may be"):
        BoxConvention(**option)
