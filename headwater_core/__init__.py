"""What every package stands on: errors, partitions, epochs, clock, files. These modules need the standard library only."""

VERSION = "0.1.0"  # of Headwater, as objects name their writer
