"""Filters: one module each, from numbers of the pool to what is left out and why."""
