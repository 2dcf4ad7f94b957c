"""Stage 4: placements -> seconds and bytes."""
