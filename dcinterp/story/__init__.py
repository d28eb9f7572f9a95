"""The five-step story of one answer: `case_study` and what it returns."""

from dcinterp.story.sentences import Step
from dcinterp.story.study import CaseStudy, case_study, source_position

__all__ = ["CaseStudy", "Step", "case_study", "source_position"]
