"""YAML of a person: what it says is read, and what it cannot mean is refused."""

from __future__ import annotations

import pytest

from dcinterp.support.errors import UserError
from dcinterp.support.yaml_text import read_yaml


@pytest.mark.parametrize("text", ["seed: 1\nlr: 2\nseed: 2\n", "a: {b: 1, b: 1}", "- {x: 1}\n- {y: 1, y: 2}"])
def test_a_key_that_stands_twice_is_refused(text):
    with pytest.raises(UserError, match="stands there twice"):
        read_yaml(text, "It")


def test_what_is_merged_twice_is_read():
    text = "a: &a {x: 1}\nouter:\n  b: &b\n    <<: *a\n    x: 2\nc:\n  <<: *b\n"
    assert read_yaml(text, "It") == {"a": {"x": 1}, "outer": {"b": {"x": 2}}, "c": {"x": 2}}


@pytest.mark.parametrize("text", ["a: !!map [1]", "a: !!set [x]", "a: !!map foo"])
def test_what_no_value_can_be_is_a_sentence(text):
    with pytest.raises(UserError, match="is not valid YAML"):
        read_yaml(text, "It")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: c: 2", r"mine is not valid YAML: mapping values are not allowed here \(line 2\)\.$"),
        ("a: 1\n\tb: 2", r"found character '\\t' that cannot start any token \(line 2\)\.$"),
        ("a: [1, 2\nb: 3", r"\(line 2\)\.$"),
    ],
)
def test_the_line_of_a_mistake_is_named(text, says):
    with pytest.raises(UserError, match=says):
        read_yaml(text, "mine")


def test_the_same_key_in_two_places_and_a_merge_are_read():
    assert read_yaml("base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\n1: {x: 2}\n'1': 0\n", "It") == {
        "base": {"x": 1, "y": 2},
        "more": {"x": 1, "y": 3},
        1: {"x": 2},
        "1": 0,
    }


def test_merges_of_merges_are_refused_before_they_are_written_out():
    lines = ["k0: &k0 {a0: 1, a1: 1, a2: 1}"]
    lines += [f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    with pytest.raises(UserError, match="merges"):
        read_yaml("\n".join(lines), "It")
