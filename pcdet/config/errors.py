"""The error of a configuration."""


class ConfigError(ValueError):
    """A configuration that cannot be used: the message names file, line, key and what to do."""
