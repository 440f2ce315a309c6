"""Registries and construction from blocks."""

import pytest

from pcdet.utils.registry import Registry, construct


class Part:
    ignored_keys = ("OLD",)

    def __init__(self, info, *, width: int, rate: float = 0.5):
        self.info, self.width, self.rate = info, width, rate


def test_names_and_the_nearest_one():
    parts = Registry("part")
    parts.register(Part)
    parts.register(name="other_part")(Part)
    assert parts["Part"] is Part and parts["other_part"] is Part
    with pytest.raises(KeyError, match=r"No part is called 'Prat'\. Did you mean 'Part'\?"):
        parts["Prat"]
    with pytest.raises(KeyError, match="already registered"):
        parts.register(Part)


def test_construct_lowers_keys_and_drops_ignored_ones():
    part = construct(Part, {"NAME": "Part", "WIDTH": 3, "OLD": 1}, "info")
    assert (part.info, part.width, part.rate) == ("info", 3, 0.5)


@pytest.mark.parametrize(
    "block, message",
    [
        ({"WIDHT": 3, "WIDTH": 3}, r"MODEL\.X: Part takes no option WIDHT\. Did you mean 'WIDTH'\?"),
        ({"RATE": 1.0}, r"MODEL\.X: Part needs the option WIDTH"),
        ({"WIDTH": 3, "INFO": 1}, "takes no option INFO"),
    ],
)
def test_construct_names_what_is_wrong(block, message):
    with pytest.raises(ValueError, match=message):
        construct(Part, block, "info", where="MODEL.X")
