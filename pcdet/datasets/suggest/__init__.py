"""A configuration suggested by the data: values with their reasons, and the YAML that says both."""

from pcdet.datasets.suggest.values import Suggestion, suggest
from pcdet.datasets.suggest.yaml_text import yaml_text

__all__ = ["Suggestion", "suggest", "yaml_text"]
