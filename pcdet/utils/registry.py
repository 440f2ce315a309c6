"""Named classes: how a YAML's NAME becomes a class."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any


class Registry(dict[str, type]):
    """Classes of one slot by name.

    ``VFES = Registry("VFE")``; ``@VFES.register`` registers under the class's own name,
    ``@AUGMENTS.register(name="gt_sampling")`` under another. Looking up an unknown name raises a ``KeyError``
    that names the slot and the nearest known name.
    """

    def __init__(self, slot: str):
        super().__init__()
        self.slot = slot

    def register(self, cls: type | None = None, *, name: str | None = None) -> Any:
        if cls is None:
            return lambda c: self._add(c, name)
        return self._add(cls, name)

    def _add(self, cls: type, name: str | None) -> type:
        key = name or cls.__name__
        if key in self:
            raise KeyError(f"{self.slot} '{key}' is already registered by {self[key].__module__}")
        self[key] = cls
        return cls

    def __missing__(self, key: str) -> type:
        raise KeyError(f"No {self.slot} is called '{key}'.{nearest(key, self)}")


def nearest(name: str, known, prefix: str = " Did you mean") -> str:
    """`` Did you mean 'x'?`` with the known name nearest to ``name``, or the list of names where none is near."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if not close:
        by_lower = {k.lower(): k for k in known}
        close = [by_lower[m] for m in difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)]
    if close:
        return f"{prefix} '{close[0]}'?"
    return f" Known: {', '.join(sorted(known))}." if known else ""


def construct(cls: Callable, block: dict, *context: Any, where: str = "") -> Any:
    """Call ``cls(*context, **options)`` with a YAML block's keys in lower case as the options.

    Keys named in ``cls.ignored_keys`` (dead options of other code bases' YAML) are dropped; NAME is not an option.
    Raises ``ValueError`` that names an option the constructor does not take.
    """
    parameters = inspect.signature(cls).parameters
    options = {p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    ignored = {k.lower() for k in getattr(cls, "ignored_keys", ())}
    given = {str(k).lower(): v for k, v in block.items() if k != "NAME"}
    place = f"{where}: " if where else ""
    for key in given.keys() - options - ignored:
        hint = nearest(key.upper(), [o.upper() for o in options])
        raise ValueError(f"{place}{cls.__name__} takes no option {key.upper()}.{hint}")
    for p in parameters.values():
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in given:
            raise ValueError(f"{place}{cls.__name__} needs the option {p.name.upper()}, which is not given")
    return cls(*context, **{k: v for k, v in given.items() if k in options})
