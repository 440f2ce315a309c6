"""Settings: a dict whose keys are attributes too."""

import copy
import pickle

import pytest

from pcdet.config.settings import Settings


def nested() -> Settings:
    return Settings({"A": {"B": [{"C": 1}, 2]}, "D": ({"E": 3},)}, F={"G": None})


def test_keys_are_attributes_at_all_depths():
    settings = nested()
    assert settings.A.B[0].C == 1 and settings.D[0].E == 3 and settings.F.G is None
    assert settings == {"A": {"B": [{"C": 1}, 2]}, "D": ({"E": 3},), "F": {"G": None}}
    assert not hasattr(settings, "H") and settings.get("H", 5) == 5
    with pytest.raises(AttributeError, match="no 'H'; they have .*'A'"):
        _ = settings.H


def test_what_is_put_in_by_any_way_is_seen_by_both():
    settings = nested()
    settings.A.X = {"Y": 1}
    settings["Z"] = [{"Y": 2}]
    settings.update({"U": {"Y": 3}}, V={"Y": 4})
    assert settings.setdefault("W", {"Y": 5}).Y == 5 and settings.setdefault("W", 0).Y == 5
    assert [settings["A"]["X"].Y, settings.Z[0].Y, settings.U.Y, settings.V.Y] == [1, 2, 3, 4]
    del settings["U"], settings.V
    assert settings.pop("W").Y == 5
    assert not any(hasattr(settings, name) for name in "UVW")
    with pytest.raises(AttributeError, match="no 'V'"):
        del settings.V


def test_a_key_called_as_a_method_spoils_nothing():
    settings = Settings({"items": 1, "get": 2})
    assert sorted(settings.items()) == [("get", 2), ("items", 1)] and settings.get("items") == 1
    assert Settings(values={"A": 1}).get("values").A == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["deepcopy", "pickle"])
def test_copies_share_nothing(copied):
    settings = nested()
    other = copied(settings)
    other.A.B[0].C = 7
    assert type(other.A.B[0]) is Settings and settings.A.B[0].C == 1
