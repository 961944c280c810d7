import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/** A Kafka Streams application that counts the records of each key of a topic, exactly once: Counter BOOTSTRAP DIRECTORY FROM TO COMMIT_MS. */
public final class Counter {
    public static void main(String[] args) {
        start(args);
    }

    static KafkaStreams start(String... args) {
        Properties p = new Properties();
        p.put("application.id", "counter");
        p.put("bootstrap.servers", args[0]);
        p.put("state.dir", args[1]);
        p.put("processing.guarantee", "exactly_once_v2");
        p.put("commit.interval.ms", args[4]);
        p.put("statestore.cache.max.bytes", "0"); // each count is written
        p.put("producer.transaction.timeout.ms", "900000"); // longer than any test commits in
        p.put("consumer.session.timeout.ms", "6000"); // it takes over from one that was killed
        p.put("consumer.heartbeat.interval.ms", "1000");
        p.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[2], Consumed.with(Serdes.String(), Serdes.String()))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream()
                .to(args[3], Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), p);
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            System.exit(1);
            return null;
        });
        streams.start();
        return streams;
    }
}
