"""Mixture-of-Experts models larger than memory: their experts are streamed from the drive while the model answers.

The work is done by a native library (`native/` in the repository), which the embedded engine's worker process loads
into llama.cpp beside its own backends. Here is what the rest of Drivetrain needs of it: its functions (`native`), its
counters and traces (`page`, `trace`), when to use it and how (`plan`, `tune`), how fast a model will be (`predict`).
"""
