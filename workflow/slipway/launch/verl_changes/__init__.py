"""What Slipway changes about verl, in verl's own processes: one module a change, installed by `registration`."""
