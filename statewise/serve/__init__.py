"""A server that OpenAI's clients talk to: requests in, tokens out, over the decoder and states that are kept."""

from statewise.serve.options import ServeConfig as ServeConfig
from statewise.serve.server import running as running
from statewise.serve.server import serve as serve
