"""Types for the benchmarks' options. Other values are refused before anything is measured."""

import argparse


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    number = count_or_none(text)
    if not number:
        raise argparse.ArgumentTypeError("counts start at 1")
    return number


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def positive(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number
