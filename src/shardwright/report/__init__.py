"""Stage 8: plans for people: text, explanations, differences, HTML. Pure functions of a record."""
