"""Measurements, each against the tools people use today, side by side in one run. Nothing here is a test."""
