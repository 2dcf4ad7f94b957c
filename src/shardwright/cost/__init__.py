"""Placements -> seconds and bytes."""
