"""Nested settings whose keys are attributes too."""

from collections.abc import Iterable, Mapping
from typing import Any


class Settings(dict):
    """A dict where ``settings.MODEL.NAME`` is ``settings["MODEL"]["NAME"]``, as users of OpenPCDet's ``cfg`` expect.

    Dicts that are put in, also those within lists and tuples, become ``Settings``. A key that is the name of a method
    of ``dict``, such as ``items``, is reached by ``settings["items"]`` alone.
    """

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any):
        super().__init__()
        self.update(values, **more)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _settings(value))

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"the settings have no {key!r}; they have {list(self)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        if key not in self:
            raise AttributeError(f"the settings have no {key!r}")
        del self[key]

    def update(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:
        """As ``dict.update``."""
        for key, value in dict(values, **more).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As ``dict.setdefault``."""
        if key not in self:
            self[key] = default
        return self[key]


def _settings(value: Any) -> Any:
    if isinstance(value, dict) and not isinstance(value, Settings):
        return Settings(value)
    if type(value) in (list, tuple):
        return type(value)(_settings(part) for part in value)
    return value
