"""What real compilers and runs make of a plan, beside what was predicted."""
