"""One partition: its local log, the head that its archiver holds, and the way of its runs into the store."""
