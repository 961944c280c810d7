"""Which partition has its turn, how fast its upload may go, and when the store is left alone."""
