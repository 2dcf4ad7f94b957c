"""What was decided -> the plan's record, a value that is saved, compared and shown."""
