"""Training jobs: submit or re-attach, run verl inside the allocation, watch, and judge by what was written."""
