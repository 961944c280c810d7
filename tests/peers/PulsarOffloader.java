import com.google.common.hash.Hashing;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.*;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.BlobStoreManagedLedgerOffloader;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.OffsetsCache;
import org.apache.bookkeeper.mledger.offload.jcloud.provider.JCloudBlobStoreProvider;
import org.apache.bookkeeper.mledger.offload.jcloud.provider.TieredStorageConfiguration;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadContext;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadSegment;
import org.apache.bookkeeper.net.BookieId;
import org.jclouds.blobstore.BlobStore;
import org.jclouds.blobstore.domain.Blob;
import org.jclouds.blobstore.domain.StorageMetadata;
import org.jclouds.domain.Credentials;

/**
 * Pulsar's own offloader, without a broker or a bookie: ledgers are files of entries, the bucket is a real one. One request per line of stdin,
 * its arguments separated by tabs. The answer is JSON lines on stdout, then a line "done", or "failed" with the stack trace.
 *
 *   bucket ENDPOINT NAME ACCESS_KEY SECRET_KEY     where the objects of all further requests are
 *   offload LEDGER UUID BLOCK_BYTES FILE           the ledger whose entries are FILE's: int32 length and the bytes of each. Blocks that are
 *                                                  too small for a part of S3 go through a store in memory, and are copied as they are
 *   ledger LEDGER UUID                             what the index says of the ledger
 *   read LEDGER UUID FIRST,LAST...                 opened once, a line per entry of each range, in turn; then how often it called getBlob
 *   delete LEDGER UUID
 *   stream LEDGER UUID,UUID... FIRST,LAST...       of a ledger in streaming objects: what its index says, and a line per entry of each range,
 *                                                  each by a handle of its own
 */
public final class PulsarOffloader {
    private static final int PART_BYTES_MIN = 5 << 20;
    private static final String NAME = "ManagedLedgerName";
    private static final Map<String, String> EXTRA = Map.of(NAME, "public/default/persistent/peers");

    private final OrderedScheduler threads = OrderedScheduler.newSchedulerBuilder().numThreads(1).name("offloader").build();
    private final LedgerOffloaderStats stats = LedgerOffloaderStats.create(false, false, null, 0);
    private Map<String, String> properties = Map.of();
    private Credentials credentials;

    public static void main(String[] none) throws Exception {
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, StandardCharsets.UTF_8);
        System.setOut(System.err); // stdout is for answers: Pulsar's store in memory announces itself there
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PulsarOffloader peer = new PulsarOffloader();
        for (String request; (request = requests.readLine()) != null; ) {
            try {
                peer.answer(out, request.split("\t"));
                out.println("done");
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                out.println("failed " + trace.toString().replace('\n', '|'));
            }
            out.flush();
        }
        System.exit(0); // jclouds has threads of its own
    }

    private void answer(PrintStream out, String[] args) throws Exception {
        if (args[0].equals("bucket")) {
            properties = Map.of("managedLedgerOffloadDriver", "S3", "managedLedgerOffloadServiceEndpoint", args[1],
                    "managedLedgerOffloadBucket", args[2]);
            credentials = new Credentials(args[3], args[4]);
            return;
        }
        long ledgerId = Long.parseLong(args[1]);
        if (args[0].equals("stream")) {
            stream(out, ledgerId, args[2].split(","), Arrays.copyOfRange(args, 3, args.length));
            return;
        }
        UUID uuid = UUID.fromString(args[2]);
        switch (args[0]) {
            case "offload" -> offload(new Ledger(ledgerId, entries(Path.of(args[4]))), uuid, Integer.parseInt(args[3]));
            case "ledger" -> ledger(out, ledgerId, uuid);
            case "read" -> read(out, ledgerId, uuid, Arrays.copyOfRange(args, 3, args.length));
            case "delete" -> {
                try (Bucket bucket = new Bucket(properties, null)) {
                    get(bucket.offloader.deleteOffloaded(ledgerId, uuid, bucket.driverMetadata()));
                }
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private void offload(Ledger ledger, UUID uuid, int blockBytes) throws Exception {
        boolean isSmall = blockBytes < PART_BYTES_MIN;
        Map<String, String> where = new HashMap<>(properties);
        where.put("managedLedgerOffloadMaxBlockSizeInBytes", String.valueOf(blockBytes));
        if (isSmall) where.put("managedLedgerOffloadDriver", JCloudBlobStoreProvider.TRANSIENT.getDriver());
        try (Bucket bucket = new Bucket(where, null)) {
            get(bucket.offloader.offload(ledger, uuid, EXTRA));
            if (!isSmall) return;
            try (Bucket real = new Bucket(properties, null)) {
                for (StorageMetadata each : bucket.store().list(bucket.name()))
                    copy(bucket.store().getBlob(bucket.name(), each.getName()), real);
            }
        }
    }

    private static void copy(Blob blob, Bucket into) throws Exception {
        byte[] content = blob.getPayload().openStream().readAllBytes();
        into.store().putBlob(into.name(), into.store().blobBuilder(blob.getMetadata().getName()).payload(content)
                .contentLength(content.length).userMetadata(blob.getMetadata().getUserMetadata()).build());
    }

    private void ledger(PrintStream out, long ledgerId, UUID uuid) throws Exception {
        try (Bucket bucket = new Bucket(properties, null)) {
            LedgerMetadata said = get(bucket.offloader.readOffloaded(ledgerId, uuid, bucket.driverMetadata())).getLedgerMetadata();
            StringBuilder custom = new StringBuilder();
            new TreeMap<>(said.getCustomMetadata()).forEach((key, value) -> custom.append(custom.isEmpty() ? "" : ",").append('"').append(key)
                    .append("\":\"").append(new String(value, StandardCharsets.UTF_8)).append('"'));
            out.println("{\"length\":" + said.getLength() + ",\"last_entry_id\":" + said.getLastEntryId() + ",\"is_closed\":" + said.isClosed()
                    + ",\"made_ms\":" + said.getCtime() + ",\"custom\":{" + custom + "}}");
        }
    }

    private void read(PrintStream out, long ledgerId, UUID uuid, String[] ranges) throws Exception {
        AtomicInteger gets = new AtomicInteger();
        try (Bucket bucket = new Bucket(properties, gets)) {
            ReadHandle handle = get(bucket.offloader.readOffloaded(ledgerId, uuid, bucket.driverMetadata()));
            for (String range : ranges)
                read(out, handle, range);
            get(handle.closeAsync());
        }
        out.println("{\"gets\":" + gets + "}");
    }

    /** A handle that has come to an object's end raises EOFException from then on: so each range has one. */
    private void stream(PrintStream out, long ledgerId, String[] uuids, String[] ranges) throws Exception {
        OffloadContext.Builder context = OffloadContext.newBuilder();
        for (String each : uuids) {
            UUID uuid = UUID.fromString(each);
            context.addOffloadSegment(OffloadSegment.newBuilder().setUidMsb(uuid.getMostSignificantBits())
                    .setUidLsb(uuid.getLeastSignificantBits()).setComplete(true));
        }
        try (Bucket bucket = new Bucket(properties, null)) {
            for (String range : ranges) {
                ReadHandle handle = get(bucket.offloader.readOffloaded(ledgerId, context.build(), bucket.driverMetadata()));
                if (range == ranges[0])
                    out.println("{\"last_entry_id\":" + handle.getLastAddConfirmed() + ",\"length\":" + handle.getLength() + "}");
                read(out, handle, range);
                get(handle.closeAsync());
            }
        }
    }

    private static void read(PrintStream out, ReadHandle handle, String range) throws Exception {
        String[] ends = range.split(",");
        try (LedgerEntries entries = get(handle.readAsync(Long.parseLong(ends[0]), Long.parseLong(ends[1])))) {
            for (LedgerEntry each : entries)
                out.println("{\"entry_id\":" + each.getEntryId() + ",\"length\":" + each.getLength() + ",\"sha256\":\""
                        + Hashing.sha256().hashBytes(each.getEntryBytes()) + "\"}");
        }
    }

    private static <T> T get(CompletableFuture<T> future) throws Exception {
        try {
            return future.get(30, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception cause ? cause : failed;
        }
    }

    private static List<byte[]> entries(Path file) throws Exception {
        ByteBuffer content = ByteBuffer.wrap(Files.readAllBytes(file));
        List<byte[]> found = new ArrayList<>();
        while (content.hasRemaining()) {
            found.add(new byte[content.getInt()]);
            content.get(found.get(found.size() - 1));
        }
        return found;
    }

    /** Pulsar's offloader over one blob store, which remembers nothing of what others have read. */
    private final class Bucket extends TieredStorageConfiguration implements AutoCloseable {
        private final BlobStoreManagedLedgerOffloader offloader;
        private final OffsetsCache offsets = new OffsetsCache();
        private final AtomicInteger gets;
        private BlobStore store;

        Bucket(Map<String, String> properties, AtomicInteger gets) throws Exception {
            super(new HashMap<>(properties));
            this.gets = gets;
            setProviderCredentials(() -> credentials);
            offloader = BlobStoreManagedLedgerOffloader.create(this, Map.of(), threads, threads, stats, offsets);
        }

        Map<String, String> driverMetadata() {
            Map<String, String> metadata = new HashMap<>(offloader.getOffloadDriverMetadata());
            metadata.putAll(EXTRA);
            return metadata;
        }

        String name() {
            return getBucket();
        }

        BlobStore store() {
            return getBlobStore();
        }

        @Override
        public BlobStore getBlobStore() {
            if (store == null) store = gets == null ? super.getBlobStore() : counted(super.getBlobStore());
            return store;
        }

        private BlobStore counted(BlobStore real) {
            return (BlobStore) Proxy.newProxyInstance(BlobStore.class.getClassLoader(), new Class<?>[] {BlobStore.class}, (proxy, method, args) -> {
                if (method.getName().equals("getBlob")) gets.incrementAndGet();
                try {
                    return method.invoke(real, args);
                } catch (InvocationTargetException failed) {
                    throw failed.getCause();
                }
            });
        }

        @Override
        public void close() {
            offsets.close();
            offloader.close();
        }
    }

    /** A ledger that was closed, in memory. */
    private record Ledger(long ledgerId, List<byte[]> entries) implements ReadHandle {
        @Override
        public long getId() {
            return ledgerId;
        }

        @Override
        public LedgerMetadata getLedgerMetadata() {
            return LedgerMetadataBuilder.create().withId(ledgerId).withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                    .withDigestType(DigestType.CRC32C).withPassword(new byte[0]).newEnsembleEntry(0, List.of(BookieId.parse("bookie:3181")))
                    .withCreationTime(1_700_000_000_000L).storingCreationTime(true).withCustomMetadata(Map.of("application", "peers".getBytes()))
                    .withClosedState().withLastEntryId(getLastAddConfirmed()).withLength(getLength()).build();
        }

        @Override
        public long getLastAddConfirmed() {
            return entries.size() - 1;
        }

        @Override
        public long getLength() {
            return entries.stream().mapToLong(entry -> entry.length).sum();
        }

        @Override
        public boolean isClosed() {
            return true;
        }

        @Override
        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> found = new ArrayList<>();
            for (long id = first; id <= last; id++) {
                ByteBuf content = Unpooled.wrappedBuffer(entries.get((int) id));
                found.add(LedgerEntryImpl.create(ledgerId, id, content.readableBytes(), content));
            }
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(found));
        }

        @Override
        public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
            return readAsync(first, last);
        }

        @Override
        public CompletableFuture<Long> readLastAddConfirmedAsync() {
            return CompletableFuture.completedFuture(getLastAddConfirmed());
        }

        @Override
        public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
            return readLastAddConfirmedAsync();
        }

        @Override
        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(long id, long timeoutMs, boolean parallel) {
            throw new UnsupportedOperationException();
        }

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }
    }
}
