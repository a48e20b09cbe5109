"""Rollouts, decided: which arm a caller gets, what the evidence says, whether to go on. Pure: reads no clock."""
