"""One small module per verb: parse, build, call, print. Heavy imports stand inside the functions."""
