"""The one language of configs: what a field may hold, checked wherever a config is made, and its form as JSON."""

from statewise.configuration.base import Config
from statewise.configuration.kinds import TYPE_KEY
from statewise.configuration.reading import assign, from_dict, parse_json, to_dict

__all__ = ["TYPE_KEY", "Config", "assign", "from_dict", "parse_json", "to_dict"]
