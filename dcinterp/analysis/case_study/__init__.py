"""The case study of one answer in five steps: `case_study` and what it returns."""

from dcinterp.analysis.case_study.case_study import CaseStudy, case_study, source_position
from dcinterp.analysis.case_study.steps import Step

__all__ = ["CaseStudy", "Step", "case_study", "source_position"]
