"""Reconciliation: which rows in doubt exist, as a listing shows (4.4).

`Reconciler` decides for the rows of a run, `find_cards` for a single card. docs/design/reconciliation.md describes the rules.
"""
