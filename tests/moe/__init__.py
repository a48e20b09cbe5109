"""Tiny Mixture-of-Experts models made on the spot, and a process that runs one, with or without the plugin."""
