import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client as the peer tests need it: assign, seek, ListOffsets, Fetch, admin; and Kafka's own storage tool. One request per line of stdin,
 * its arguments separated by tabs. The answer is JSON lines on stdout, then a line "done", or "failed" with the stack trace.
 *
 *   read BOOTSTRAP ISOLATION TOPIC,...            a "bounds" line per partition, then every record in it
 *   seek BOOTSTRAP ISOLATION TOPIC PARTITION OFFSET COUNT   the first COUNT records from OFFSET on
 *   times BOOTSTRAP TOPIC PARTITION TIMESTAMP,...  offset and timestamp per timestamp, null where there is none
 *   coordinated BOOTSTRAP                         a line for each quota, group and transactional id, as the fixtures' cluster files have them
 *   groups BOOTSTRAP                              one line: how many groups and commits there are, and how many ms it took to list and read them
 *   quota BOOTSTRAP KIND=NAME,... KEY VALUE       gives it to a user, a client-id or both; nothing is printed
 *   share BOOTSTRAP GROUP TOPIC PARTITION:OFFSET,...   a member of a share group: every record that it acquires at first; it accepts those named
 *   shared BOOTSTRAP GROUP,...                    a line for each partition of which a share group has a state, as kafka-share-groups has it
 *   group BOOTSTRAP GROUP KEY VALUE               gives a setting to a group; nothing is printed
 *   configs BOOTSTRAP                             a line for each topic, broker, group and client-metrics subscription: its own settings
 *   transact BOOTSTRAP ID GROUP TOPIC END:VALUE,...   initialises a transactional id; then a transaction for each value: the value to partitions 0 and 1,
 *                                                 the value's length as the group's offset; END is commit, abort, or open, which is left so
 *   storage ARGUMENT...                           kafka-storage; nothing is printed when it succeeds
 */
public final class Peer {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long PATIENCE_MS = 90_000;

    public static void main(String[] none) throws Exception {
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, StandardCharsets.UTF_8);
        System.setOut(System.err); // stdout is for answers: what Kafka logs is none
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String request; (request = requests.readLine()) != null; ) {
            try {
                answer(out, request.split("\t"));
                out.println("done");
            } catch (Exception failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                out.println("failed " + trace.toString().replace('\n', '|'));
            }
            out.flush();
        }
    }

    private static void answer(PrintStream out, String[] args) throws Exception {
        switch (args[0]) {
            case "read" -> read(out, args[1], args[2], args[3].split(","));
            case "seek" -> seek(out, args[1], args[2], new TopicPartition(args[3], Integer.parseInt(args[4])),
                    Long.parseLong(args[5]), Integer.parseInt(args[6]));
            case "times" -> times(out, args[1], new TopicPartition(args[2], Integer.parseInt(args[3])), args[4].split(","));
            case "coordinated" -> coordinated(out, args[1]);
            case "groups" -> groups(out, args[1]);
            case "quota" -> quota(args[1], args[2], args[3], Double.parseDouble(args[4]));
            case "share" -> share(out, args[1], args[2], args[3], Set.of(args[4].split(",")));
            case "shared" -> shared(out, args[1], args[2].split(","));
            case "group" -> group(args[1], args[2], args[3], args[4]);
            case "configs" -> configs(out, args[1]);
            case "transact" -> transact(args[1], args[2], args[3], args[4], args.length > 5 ? args[5].split(",") : new String[0]);
            case "storage" -> {
                ByteArrayOutputStream said = new ByteArrayOutputStream();
                int code = kafka.tools.StorageTool.execute(Arrays.copyOfRange(args, 1, args.length), new PrintStream(said));
                if (code != 0) throw new IllegalStateException("kafka-storage ended with " + code + ": " + said);
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static Consumer<byte[], byte[]> consumer(String bootstrap, String isolation) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("isolation.level", isolation);
        p.put("check.crcs", "true");
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "none");
        p.put("default.api.timeout.ms", "60000");
        p.put("key.deserializer", ByteArrayDeserializer.class.getName());
        p.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return new KafkaConsumer<>(p);
    }

    private static void transact(String bootstrap, String id, String group, String topic, String[] transactions) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("transactional.id", id);
        p.put("transaction.timeout.ms", "600000");
        Producer<byte[], byte[]> producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            producer.initTransactions();
            for (String transaction : transactions) {
                String end = transaction.split(":")[0], value = transaction.split(":")[1];
                producer.beginTransaction();
                for (int partition : new int[] {0, 1})
                    producer.send(new ProducerRecord<>(topic, partition, null, value.getBytes(StandardCharsets.UTF_8)));
                producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(value.length())), new ConsumerGroupMetadata(group));
                producer.flush();
                if (end.equals("commit")) producer.commitTransaction();
                if (end.equals("abort")) producer.abortTransaction();
            }
        } finally {
            producer.close(Duration.ZERO); // which aborts nothing
        }
    }

    private static void read(PrintStream out, String bootstrap, String isolation, String[] topics) throws Exception {
        try (Consumer<byte[], byte[]> consumer = consumer(bootstrap, isolation)) {
            List<TopicPartition> all = new ArrayList<>();
            for (String topic : topics)
                consumer.partitionsFor(topic).forEach(info -> all.add(new TopicPartition(topic, info.partition())));
            Map<TopicPartition, Long> starts = consumer.beginningOffsets(all), ends = consumer.endOffsets(all);
            for (TopicPartition at : all)
                out.println("{\"bounds\":true,\"topic\":" + Records.text(at.topic()) + ",\"partition\":" + at.partition()
                        + ",\"start\":" + starts.get(at) + ",\"end\":" + ends.get(at) + "}");
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Set<TopicPartition> unfinished = new HashSet<>(all);
            long progress = System.currentTimeMillis();
            while (true) {
                for (Iterator<TopicPartition> i = unfinished.iterator(); i.hasNext(); ) {
                    TopicPartition at = i.next();
                    if (consumer.position(at) >= ends.get(at)) {
                        consumer.pause(List.of(at));
                        i.remove();
                    }
                }
                if (unfinished.isEmpty()) return;
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                for (ConsumerRecord<byte[], byte[]> record : records) Records.write(out, record);
                if (!records.isEmpty()) progress = System.currentTimeMillis();
                if (System.currentTimeMillis() - progress > PATIENCE_MS) {
                    TopicPartition at = unfinished.iterator().next();
                    throw new IllegalStateException(at + " stands at " + consumer.position(at) + " of " + ends.get(at));
                }
            }
        }
    }

    private static void seek(PrintStream out, String bootstrap, String isolation, TopicPartition at, long offset, int count)
            throws Exception {
        try (Consumer<byte[], byte[]> consumer = consumer(bootstrap, isolation)) {
            consumer.assign(List.of(at));
            consumer.seek(at, offset);
            long since = System.currentTimeMillis();
            for (int left = count; left > 0; ) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL))
                    if (left-- > 0) Records.write(out, record);
                if (System.currentTimeMillis() - since > PATIENCE_MS)
                    throw new IllegalStateException(left + " records missing from " + at + " at " + offset);
            }
        }
    }

    private static void times(PrintStream out, String bootstrap, TopicPartition at, String[] timestamps) {
        try (Consumer<byte[], byte[]> consumer = consumer(bootstrap, "read_uncommitted")) {
            for (String timestamp : timestamps) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(at, Long.parseLong(timestamp))).get(at);
                out.println("{\"asked\":" + timestamp + ",\"offset\":" + (found == null ? null : found.offset())
                        + ",\"timestamp\":" + (found == null ? null : found.timestamp()) + "}");
            }
        }
    }

    private static Admin admin(String bootstrap) {
        return Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "60000"));
    }

    private static void quota(String bootstrap, String names, String key, double value) throws Exception {
        Map<String, String> entity = new HashMap<>();
        for (String name : names.split(",")) entity.put(name.split("=")[0], name.split("=")[1]);
        ClientQuotaAlteration.Op op = new ClientQuotaAlteration.Op(key, value);
        try (Admin admin = admin(bootstrap)) {
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(entity), List.of(op)))).all().get();
        }
    }

    private static void share(PrintStream out, String bootstrap, String group, String topic, Set<String> accepted) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group, "share.acknowledgement.mode", "explicit",
                "key.deserializer", ByteArrayDeserializer.class.getName(), "value.deserializer", ByteArrayDeserializer.class.getName());
        try (ShareConsumer<byte[], byte[]> member = new KafkaShareConsumer<>(settings)) {
            member.subscribe(List.of(topic));
            Set<String> left = new HashSet<>(accepted), seen = new HashSet<>();
            for (long since = System.currentTimeMillis(); !left.isEmpty(); ) {
                int before = seen.size();
                for (ConsumerRecord<byte[], byte[]> record : member.poll(POLL)) {
                    String place = record.partition() + ":" + record.offset();
                    member.acknowledge(record, left.remove(place) ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                    if (seen.add(place)) Records.write(out, record);
                }
                member.commitSync().values().forEach(error -> error.ifPresent(each -> { throw each; }));
                if (seen.size() == before) Thread.sleep(500); // each delivery of what is given back counts
                if (System.currentTimeMillis() - since > PATIENCE_MS)
                    throw new IllegalStateException(group + " does not get " + left + ", and has got " + seen);
            }
        }
    }

    private static void shared(PrintStream out, String bootstrap, String[] groups) throws Exception {
        try (Admin admin = admin(bootstrap)) {
            for (String group : groups)
                admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get()
                        .forEach((at, info) -> out.println("{\"group\":" + Records.text(group) + ",\"topic\":" + Records.text(at.topic())
                                + ",\"partition\":" + at.partition() + ",\"start\":" + (info == null ? null : info.startOffset())
                                + ",\"lag\":" + (info == null ? null : info.lag().orElse(null)) + "}"));
        }
    }

    private static void group(String bootstrap, String group, String key, String value) throws Exception {
        AlterConfigOp op = new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET);
        try (Admin admin = admin(bootstrap)) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(op))).all().get();
        }
    }

    private static void configs(PrintStream out, String bootstrap) throws Exception {
        Map<ConfigResource.Type, ConfigEntry.ConfigSource> own = Map.of(
                ConfigResource.Type.TOPIC, ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG,
                ConfigResource.Type.BROKER, ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG,
                ConfigResource.Type.GROUP, ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG,
                ConfigResource.Type.CLIENT_METRICS, ConfigEntry.ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG);
        ConfigResource everyBroker = new ConfigResource(ConfigResource.Type.BROKER, "");
        try (Admin admin = admin(bootstrap)) {
            List<ConfigResource> all = new ArrayList<>(List.of(everyBroker));
            all.addAll(admin.listConfigResources(own.keySet(), new ListConfigResourcesOptions()).all().get());
            admin.describeConfigs(all).all().get().forEach((of, config) -> {
                ConfigEntry.ConfigSource source =
                        of.equals(everyBroker) ? ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG : own.get(of.type());
                String values = config.entries().stream().filter(e -> e.source() == source).sorted(Comparator.comparing(ConfigEntry::name))
                        .map(e -> Records.text(e.name()) + ":" + Records.text(e.value())).collect(Collectors.joining(","));
                out.println("{\"type\":" + Records.text(of.type().name()) + ",\"name\":" + Records.text(of.name()) + ",\"configs\":{" + values + "}}");
            });
        }
    }

    private static void groups(PrintStream out, String bootstrap) throws Exception {
        try (Admin admin = admin(bootstrap)) {
            admin.describeCluster().nodes().get(); // connects
            long started = System.nanoTime();
            Map<String, ListConsumerGroupOffsetsSpec> wanted = new HashMap<>();
            for (GroupListing each : admin.listGroups().all().get()) wanted.put(each.groupId(), new ListConsumerGroupOffsetsSpec());
            int commits = wanted.isEmpty() ? 0 : admin.listConsumerGroupOffsets(wanted).all().get().values().stream().mapToInt(Map::size).sum();
            out.println("{\"groups\":" + wanted.size() + ",\"commits\":" + commits + ",\"took_ms\":" + (System.nanoTime() - started) / 1e6 + "}");
        }
    }

    private static void coordinated(PrintStream out, String bootstrap) throws Exception {
        try (Admin admin = admin(bootstrap)) {
            admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().forEach((entity, quotas) -> {
                String names = new TreeMap<>(entity.entries()).entrySet().stream()
                        .map(e -> Records.text(e.getKey()) + ":" + (e.getValue() == null ? "null" : Records.text(e.getValue()))).collect(Collectors.joining(","));
                String values = new TreeMap<>(quotas).entrySet().stream()
                        .map(e -> Records.text(e.getKey()) + ":" + e.getValue()).collect(Collectors.joining(","));
                out.println("{\"entity\":{" + names + "},\"quotas\":{" + values + "}}");
            });
            for (TransactionListing each : admin.listTransactions().all().get())
                out.println("{\"transactional_id\":" + Records.text(each.transactionalId()) + ",\"producer_id\":" + each.producerId()
                        + ",\"state\":" + Records.text(each.state().toString()) + "}");
            for (GroupListing each : admin.listGroups().all().get()) {
                Map<TopicPartition, OffsetAndMetadata> offsets =
                        admin.listConsumerGroupOffsets(each.groupId()).partitionsToOffsetAndMetadata().get();
                String committed = offsets.entrySet().stream().filter(e -> e.getValue() != null)
                        .sorted(Comparator.comparing(e -> e.getKey().toString()))
                        .map(e -> "{\"topic\":" + Records.text(e.getKey().topic()) + ",\"partition\":" + e.getKey().partition()
                                + ",\"offset\":" + e.getValue().offset() + ",\"metadata\":" + Records.text(e.getValue().metadata())
                                + ",\"leader_epoch\":" + e.getValue().leaderEpoch().orElse(-1) + "}").collect(Collectors.joining(","));
                out.println("{\"group\":" + Records.text(each.groupId()) + ",\"type\":" + Records.text(each.type().map(Object::toString).orElse(""))
                        + ",\"protocol\":" + Records.text(each.protocol()) + ",\"state\":"
                        + Records.text(each.groupState().map(Object::toString).orElse("")) + ",\"offsets\":[" + committed + "]}");
            }
        }
    }
}
