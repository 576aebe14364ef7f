"""The linear families, each with its definition and its fast forms behind one call."""

from statewise.operators.base import Operator
from statewise.operators.causal_convolution import CausalConvolution, ConvolutionState
from statewise.operators.diagonal import DiagonalLTI, DiagonalState
from statewise.operators.plan import explain, plan, table
from statewise.operators.ssd import SSD, SSDState

__all__ = [
    "SSD",
    "CausalConvolution",
    "ConvolutionState",
    "DiagonalLTI",
    "DiagonalState",
    "Operator",
    "SSDState",
    "explain",
    "plan",
    "table",
]
