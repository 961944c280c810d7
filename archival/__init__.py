"""Log to archive: which run comes next, which agent may archive it, and when the local copy may be deleted."""
