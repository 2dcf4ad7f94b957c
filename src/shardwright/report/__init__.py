"""Plans for people: text, explanations, differences, HTML. Pure functions of a record."""
