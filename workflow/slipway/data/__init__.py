"""Data: from a task's settings to rows that verl trains on."""

from slipway.data.prepare import prepare_data

__all__ = ["prepare_data"]
