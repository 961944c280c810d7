import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.streams.KafkaStreams;

/**
 * What load.py does, as the Java client does it, and a Kafka Streams application and a member of a share group beside it:
 *
 *   Load BOOTSTRAP DIRECTORY LIFE PARTITIONS
 *
 * Each record that the share group acquires is a line "sharers PARTITION OFFSET". It goes on until its input ends.
 */
public final class Load {
    private static final PrintStream OUT = System.out;
    private static volatile boolean ended;

    private interface Client {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        String bootstrap = args[0], life = args[2];
        int partitions = Integer.parseInt(args[3]);
        List<Thread> threads = new ArrayList<>();
        for (int home = 0; home < partitions; home++) {
            int own = home;
            threads.add(thread(() -> transact(bootstrap, "java-" + own, life, own, partitions)));
        }
        threads.add(thread(() -> share(bootstrap, life)));
        KafkaStreams streams = Counter.start(bootstrap, args[1], "in", "out", "200");
        while (System.in.read() >= 0) ;
        ended = true;
        for (Thread thread : threads) thread.join();
        streams.close(Duration.ofSeconds(60));
    }

    private static Thread thread(Client client) {
        Thread thread = new Thread(() -> {
            try {
                client.run();
            } catch (Throwable failure) {
                failure.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
        thread.start();
        return thread;
    }

    /** Transactions over its own partition and others, some with an offset of its group. A value is ID/LIFE/NUMBER/SIZE/AT/END. */
    private static void transact(String bootstrap, String id, String life, int own, int partitions) throws Exception {
        Random random = new Random((id + life).hashCode());
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", id, "transaction.timeout.ms", "900000");
        try (Producer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (int number = 0; !ended; number++) {
                int size = 1 + random.nextInt(4);
                String end = random.nextInt(4) > 0 ? "commit" : "abort";
                producer.beginTransaction();
                for (int at = 0; at < size; at++) {
                    String value = String.join("/", id, life, "" + number, "" + size, "" + at, end);
                    int partition = at == 0 ? own : random.nextInt(partitions);
                    producer.send(new ProducerRecord<>("orders", partition, null, value.getBytes(StandardCharsets.UTF_8))).get();
                    Thread.sleep(random.nextInt(80));
                }
                if (random.nextBoolean())
                    producer.sendOffsetsToTransaction(Map.of(new TopicPartition("orders", own), new OffsetAndMetadata(number)),
                            new ConsumerGroupMetadata("group-" + id));
                if (end.equals("commit")) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
    }

    /** In the first life some records are given back, so that single ones are done with above the group's start. */
    private static void share(String bootstrap, String life) {
        Random random = new Random(life.hashCode());
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", "sharers", "share.acknowledgement.mode", "explicit",
                "key.deserializer", ByteArrayDeserializer.class.getName(), "value.deserializer", ByteArrayDeserializer.class.getName());
        try (ShareConsumer<byte[], byte[]> member = new KafkaShareConsumer<>(settings)) {
            member.subscribe(List.of("soup"));
            while (!ended) {
                for (ConsumerRecord<byte[], byte[]> record : member.poll(Duration.ofMillis(200))) {
                    boolean isAccepted = !life.equals("1") || random.nextInt(5) > 0;
                    member.acknowledge(record, isAccepted ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                    OUT.println("sharers " + record.partition() + " " + record.offset());
                }
                member.commitSync().values().forEach(error -> error.ifPresent(each -> { throw each; }));
            }
        }
    }
}
