"""A recovery on trial: restored into a scratch directory, read back, compared with the archive and the live cluster, and reported."""
