"""What to do next, decided from values alone: no file, no bucket, no clock."""
