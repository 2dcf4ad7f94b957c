"""Decisions -> placements and collectives: the partitioning IR."""
