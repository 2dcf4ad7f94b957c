"""Stage 3: decisions -> placements and collectives: the partitioning IR."""
