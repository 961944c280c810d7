"""Log to archive: which run comes next, on whose word, and when the local copy may go."""
