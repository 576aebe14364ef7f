"""The six tasks of the Long Range Arena from their official files, and stand-ins of our own that need no files.

Source:  Tay et al. 2021, "Long Range Arena", arXiv:2011.04006; prepared as the published S4 runs had the data,
         github.com/state-spaces/s4 ``src/dataloaders``.
"""

from statewise.data.long_range.config import LongRangeDataConfig as LongRangeDataConfig
from statewise.data.long_range.data import LongRangeData as LongRangeData
from statewise.data.long_range.opening import open_long_range as open_long_range
from statewise.data.long_range.split import TokenRowsSplit as TokenRowsSplit
