"""The one language of configs: what a field may hold, checked wherever a config is made, and its form as JSON."""

from statewise.configuration.base import Config as Config
from statewise.configuration.kinds import TYPE_KEY as TYPE_KEY
from statewise.configuration.reading import DuplicateKeyError as DuplicateKeyError
from statewise.configuration.reading import assign as assign
from statewise.configuration.reading import from_dict as from_dict
from statewise.configuration.reading import parse_json as parse_json
from statewise.configuration.reading import to_dict as to_dict
from statewise.configuration.reading import unique_keys as unique_keys
