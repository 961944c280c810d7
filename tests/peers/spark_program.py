"""What tests submit to a Spark cluster. `read STORE TOPICS OUT`: every record of these topics as the expected files have it, one file in
the directory OUT for each isolation level; prints how many executors there were.
`follow STORE CHECKPOINT SINK`: a stream into Parquet, in small batches, until it is killed; prints the number of each batch that is done.
`finish STORE CHECKPOINT SINK`: the same to the end, in larger ones; then prints the offsets in the sink."""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent, StreamingQueryListener

from headwater.pipeline.spark.data_source import HeadwaterSource
from tests.headwater.pipeline.rows import as_expected


def read(spark: SparkSession, store: str, topics: str, out: str) -> None:
    for isolation in ("read_uncommitted", "read_committed"):
        options = {"store": store, "topics": topics, "isolation": isolation, "includeHeaders": "true"}
        frame = spark.read.format("headwater").options(**options).load()
        rows = frame.withColumn("timestamp_ms", sql.unix_millis("timestamp")).orderBy("topic", "partition", "offset").collect()
        Path(out, isolation).write_text("".join(json.dumps(as_expected(row)) + "\n" for row in rows))
    executors: Any = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()  # the driver among them
    print(executors - 1)


class Progress(StreamingQueryListener):
    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        print(event.progress.batchId, flush=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def follow(spark: SparkSession, store: str, checkpoint: str, sink: str, *, to_the_end: bool) -> None:
    limit = "200" if to_the_end else "20"
    options = {"store": store, "topics": "*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    rows = spark.readStream.format("headwater").options(**options).option("columns", "topic,partition,offset").load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", sink)
    if to_the_end:
        writer.trigger(availableNow=True).start().awaitTermination()
        print(json.dumps(sorted(list(row) for row in spark.read.parquet(sink).collect())))
    else:
        spark.streams.addListener(Progress())
        writer.start().awaitTermination()


def main(what: str, *arguments: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(HeadwaterSource)
    if what == "read":
        read(spark, *arguments)
    else:
        follow(spark, *arguments, to_the_end=what == "finish")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
