"""Data: from a task's settings to rows that verl trains on."""

from slipway.data.prepare import Surroundings, hold_out, prepare_data

__all__ = ["Surroundings", "hold_out", "prepare_data"]
