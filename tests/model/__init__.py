"""An executable model of the commit protocol (docs/design.md §3, §4, §7), explored exhaustively. See README.md."""
