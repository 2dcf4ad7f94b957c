"""`python -m shardwright` is the command line."""

from shardwright.cli import main

main(prog_name="shardwright")
