"""Clips as people really send them, one dataclass each, with what a server owes for them; for tests of any room."""

from tests.field.case import FieldCase
from tests.field.codecs import CODEC_CASES
from tests.field.refused import REFUSED_CASES
from tests.field.shapes import SHAPE_CASES
from tests.field.times import TIME_CASES

FIELD_CASES: tuple[FieldCase, ...] = (*TIME_CASES, *CODEC_CASES, *SHAPE_CASES, *REFUSED_CASES)

__all__ = ["FIELD_CASES", "FieldCase"]
