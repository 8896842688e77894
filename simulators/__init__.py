"""Fake BMCs for tests, trials and the demo site; no other room imports this one."""
