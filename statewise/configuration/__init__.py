"""The one language of configs: what a field may hold, checked wherever a config is made, and its form as JSON."""

from statewise.configuration.base import Config
from statewise.configuration.kinds import TYPE_KEY
from statewise.configuration.reading import DuplicateKeyError, assign, from_dict, parse_json, to_dict, unique_keys

__all__ = ["TYPE_KEY", "Config", "DuplicateKeyError", "assign", "from_dict", "parse_json", "to_dict", "unique_keys"]
