"""Figures of what happened over time: counted where it happens, in few rows, and kept for a year."""
