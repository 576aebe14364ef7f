"""The linear families. One call covers a family's definition and its fast forms."""

from statewise.operators.base import Operator
from statewise.operators.bidirectional import Bidirectional, bidirectional
from statewise.operators.causal_convolution import CausalConvolution, ConvolutionState
from statewise.operators.delta_rule import DeltaRule, DeltaRuleState, DiagonalPlusRankOne
from statewise.operators.dense import DenseLTI, DenseLTV, DenseLTVState, DenseState
from statewise.operators.diagonal import DiagonalLTI, DiagonalState
from statewise.operators.diagonal_low_rank import DiagonalPlusLowRank, LowRankState
from statewise.operators.diagonal_mimo import DiagonalMIMO
from statewise.operators.plan import explain, plan
from statewise.operators.plan import table as _table
from statewise.operators.selective import SelectiveDiagonal, SelectiveState
from statewise.operators.ssd import SSD, SSDState

FAMILIES: tuple[type[Operator], ...] = (
    *(DenseLTI, DenseLTV, DiagonalPlusLowRank, DiagonalLTI, DiagonalMIMO),  # time-invariant, and HiPPO-LegS
    *(CausalConvolution, SelectiveDiagonal, SSD, DeltaRule, DiagonalPlusRankOne),
)


def table() -> str:
    """A Markdown table of which form of which family runs when, and why; the first line of a family that applies
    decides.
    """
    return _table(FAMILIES)


__all__ = [
    "FAMILIES",
    "SSD",
    "Bidirectional",
    "CausalConvolution",
    "ConvolutionState",
    "DeltaRule",
    "DeltaRuleState",
    "DenseLTI",
    "DenseLTV",
    "DenseLTVState",
    "DenseState",
    "DiagonalLTI",
    "DiagonalMIMO",
    "DiagonalPlusLowRank",
    "DiagonalPlusRankOne",
    "DiagonalState",
    "LowRankState",
    "Operator",
    "SSDState",
    "SelectiveDiagonal",
    "SelectiveState",
    "bidirectional",
    "explain",
    "plan",
    "table",
]
