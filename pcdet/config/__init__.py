"""OpenPCDet's YAML in, checked settings out. Imports no torch."""

from pcdet.config.config import Config, load_config, load_data_settings, load_dataset_config, load_settings
from pcdet.config.errors import ConfigError

__all__ = ["Config", "ConfigError", "load_config", "load_data_settings", "load_dataset_config", "load_settings"]
