"""What the broker beside an agent says of its logs, and what it is asked to delete."""
