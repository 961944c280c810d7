"""Where Spark finds `format("headwater")` by itself: it looks for a DefaultSource in the top-level modules named pyspark_….

Only pyspark is imported before the format is used. Spark imports all these modules when it meets the first format that Java does
not know, and if one of them fails, Spark finds none of them.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """`headwater.spark.HeadwaterSource`, loaded on first use."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType | str:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return self._source().streamReader(schema)

    def _source(self) -> DataSource:
        from headwater_core.installation import check_packages

        check_packages()  # a user's headwater.py would be imported by the next line
        from headwater.pipeline.spark.data_source import HeadwaterSource

        return HeadwaterSource(self.options)
