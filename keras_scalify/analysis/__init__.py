"""Statistics of operands, and reports of them."""

from keras_scalify.analysis.report import ScaleReport
from keras_scalify.analysis.scale_report import scale_report
from keras_scalify.statistics import STATISTICS, Statistic

__all__ = ["STATISTICS", "ScaleReport", "Statistic", "scale_report"]
