"""Launching and watching verl on a cluster."""
