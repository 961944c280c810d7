"""Words: offsets, partitions, clock, errors. Standard library only."""
