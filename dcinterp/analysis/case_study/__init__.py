"""The five-step story of one answer: `case_study` and what it returns."""

from dcinterp.analysis.case_study.case_study import CaseStudy, case_study, source_position
from dcinterp.analysis.case_study.steps import Step

__all__ = ["CaseStudy", "Step", "case_study", "source_position"]
