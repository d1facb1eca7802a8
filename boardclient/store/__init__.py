"""The databases that several processes share: ledgers of rows, tokens and paces."""
