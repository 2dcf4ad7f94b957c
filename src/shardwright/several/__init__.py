"""Several plans: variants compared, alternatives advised, parameters shared by functions."""
