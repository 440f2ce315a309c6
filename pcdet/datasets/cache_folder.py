"""Where what is computed from a data set once is kept for later starts."""

import hashlib
from pathlib import Path

FOLDER = ".pcdet_cache"


def cache_places(root: Path) -> tuple[Path, Path]:
    """``root``'s own folder ``.pcdet_cache`` and, for data that may not be written to, one below ``~/.cache/pcdet``.

    What is found in either is used; the first that can be written to is written to. Neither need exist.
    """
    elsewhere = Path.home() / ".cache" / "pcdet" / hashlib.sha256(str(root).encode()).hexdigest()[:12]
    return root / FOLDER, elsewhere
