"""One logger for the library, in OpenPCDet's line format."""

import logging
import sys
from pathlib import Path

FORMAT = "%(asctime)s  %(levelname)5s  %(message)s"


def get_logger() -> logging.Logger:
    """The library's logger. Silent below WARNING until ``setup_logger`` is called by a command."""
    return logging.getLogger("pcdet")


def setup_logger(log_file: str | Path | None = None, rank: int = 0) -> logging.Logger:
    """Log to standard output and, if given, to ``log_file`` (appended). Ranks above 0 only report errors."""
    logger = get_logger()
    logger.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    if log_file is not None and rank == 0:
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(log_file, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
    return logger
