"""Stage 7: what real compilers and runs make of a plan, beside what was predicted."""
