"""What the benchmarks' options take; anything else is refused before something is measured."""

import argparse


def count(text: str) -> int:
    """Take a whole number from 1 on."""
    number = count_or_none(text)
    if not number:
        raise argparse.ArgumentTypeError("counts start at 1")
    return number


def count_or_none(text: str) -> int:
    """Take a whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def positive(text: str) -> float:
    """Take a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number
