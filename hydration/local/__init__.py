"""The broker's own copy: looks at its directory, its segments, what they say of transactions and times."""
