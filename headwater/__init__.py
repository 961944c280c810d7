"""The program, and what other programs use of it: `headwater.scan(...)`, its `headwater.Predicate` and `headwater.spark`. All are loaded on
first use."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater import spark as spark
    from headwater.pipeline.scan.arrow_stream import scan as scan
    from headwater.pipeline.scan.query import Predicate as Predicate
else:

    def __getattr__(name: str) -> object:
        if name == "scan":
            try:
                from headwater.pipeline.scan.arrow_stream import scan
            except ModuleNotFoundError as error:
                message = f'headwater.scan needs {error.name}, which is not installed: pip install "headwater[scan]"'
                raise ModuleNotFoundError(message, name=error.name) from None
            return scan
        if name == "Predicate":
            from headwater.pipeline.scan.query import Predicate

            return Predicate
        if name == "spark":
            import importlib

            return importlib.import_module("headwater.spark")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), "Predicate", "scan", "spark"})
