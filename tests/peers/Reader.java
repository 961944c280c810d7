import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The Java consumer as applications use it, of old releases and new: a program of reader_programs.py, which says what it is to do. */
public final class Reader {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        Properties p = new Properties();
        p.put("bootstrap.servers", args[1]);
        p.put("isolation.level", args[2]);
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        if (args[0].equals("read")) {
            try (Consumer<byte[], byte[]> consumer = consumer(p)) {
                read(consumer, args[3], Arrays.copyOfRange(args, 4, args.length));
            }
            return;
        }
        p.put("group.id", args[3]);
        if (args[5].equals("classic")) {
            p.put("session.timeout.ms", "20000");
            p.put("heartbeat.interval.ms", "200");
        } else {
            p.put("group.protocol", args[5]);
        }
        if (args.length > 6) p.put("group.instance.id", args[6]);
        try (Consumer<byte[], byte[]> consumer = consumer(p)) {
            join(consumer, args[4]);
        }
    }

    private static Consumer<byte[], byte[]> consumer(Properties p) {
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void read(Consumer<byte[], byte[]> consumer, String from, String[] places) throws Exception {
        Map<TopicPartition, Long> ends = new HashMap<>();
        for (String place : places) {
            String[] parts = place.split(":");
            ends.put(new TopicPartition(parts[0], Integer.parseInt(parts[1])), Long.parseLong(parts[2]));
        }
        consumer.assign(ends.keySet());
        if (from.equals("beginning")) {
            consumer.seekToBeginning(ends.keySet());
        } else {
            Map<TopicPartition, Long> times = ends.keySet().stream().collect(Collectors.toMap(at -> at, at -> Long.parseLong(from)));
            consumer.offsetsForTimes(times).forEach((at, found) -> consumer.seek(at, found.offset()));
        }
        while (!ends.isEmpty())
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                Records.write(out, record);
                TopicPartition at = new TopicPartition(record.topic(), record.partition());
                if (record.offset() + 1 >= ends.getOrDefault(at, Long.MAX_VALUE)) ends.remove(at);
            }
    }

    private static void join(Consumer<byte[], byte[]> consumer, String topic) throws Exception {
        Queue<String> requests = requests();
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                print(consumer.assignment());
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                Set<TopicPartition> kept = new HashSet<>(consumer.assignment());
                kept.removeAll(partitions);
                print(kept);
            }
        });
        for (int wanted = 0; ; ) {
            String request = requests.poll();
            if ("end".equals(request)) return;
            if (request != null) wanted += Integer.parseInt(request.split(" ")[1]);
            if (wanted > 0) consumer.resume(consumer.assignment());
            else consumer.pause(consumer.assignment());
            ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
            Map<TopicPartition, OffsetAndMetadata> taken = new HashMap<>();
            for (TopicPartition at : records.partitions()) {
                for (ConsumerRecord<byte[], byte[]> record : records.records(at)) {
                    if (wanted == 0) {
                        consumer.seek(at, record.offset());
                        break;
                    }
                    Records.write(out, record);
                    taken.put(at, new OffsetAndMetadata(record.offset() + 1));
                    wanted--;
                }
            }
            if (taken.isEmpty()) continue;
            consumer.commitSync(taken);
            if (wanted == 0) out.println("{\"committed\":true}");
        }
    }

    private static void print(Collection<TopicPartition> partitions) {
        out.println("{\"partitions\":" + partitions.stream().map(TopicPartition::partition).sorted().collect(Collectors.toList()) + "}");
    }

    /** The lines of stdin, as they come; its end is one of them. */
    private static Queue<String> requests() {
        Queue<String> requests = new LinkedBlockingQueue<>();
        Thread reading = new Thread(() -> {
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).lines().forEach(requests::add);
            requests.add("end");
        });
        reading.setDaemon(true);
        reading.start();
        return requests;
    }
}
