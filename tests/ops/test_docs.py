"""The page on the algebra is what the table of rules says."""

from pathlib import Path

from tests.ops.render_algebra import render

PAGE = Path(__file__).parents[2] / "docs" / "algebra.md"


def test_the_page_agrees_with_the_table():
    command = "python -m tests.ops.render_algebra > docs/algebra.md"
    assert PAGE.read_text("utf-8") == render(), f"run: {command}"
