"""The program: command line, configuration, agent. Nothing is loaded here."""

__version__ = "0.1.0"
