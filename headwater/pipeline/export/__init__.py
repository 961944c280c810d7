"""Topics as Parquet files by day: what is not exported yet, the checkpoint, the files."""
