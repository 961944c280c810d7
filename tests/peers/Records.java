import java.io.PrintStream;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.HexFormat;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/** Records as JSON, in the shape of the fixtures' expected files. */
final class Records {
    private Records() {}

    static void write(PrintStream out, ConsumerRecord<byte[], byte[]> r) throws Exception {
        StringBuilder headers = new StringBuilder();
        for (Header header : r.headers())
            headers.append(headers.length() == 0 ? "" : ",").append('[').append(text(header.key())).append(',')
                    .append(base64(header.value())).append(']');
        out.println("{\"topic\":" + text(r.topic()) + ",\"partition\":" + r.partition() + ",\"offset\":" + r.offset()
                + ",\"timestamp\":" + r.timestamp() + ",\"timestamp_type\":\"" + r.timestampType() + "\",\"leader_epoch\":"
                + r.leaderEpoch().map(String::valueOf).orElse("null") + ",\"key\":" + bytes(r.key()) + ",\"value\":"
                + bytes(r.value()) + ",\"headers\":[" + headers + "]}");
    }

    /** Long values by length and digest. */
    private static String bytes(byte[] data) throws Exception {
        if (data == null || data.length <= 2048) return base64(data);
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(data);
        return "{\"len\":" + data.length + ",\"sha256\":\"" + HexFormat.of().formatHex(digest) + "\"}";
    }

    private static String base64(byte[] data) {
        return data == null ? "null" : "\"" + Base64.getEncoder().encodeToString(data) + "\"";
    }

    static String text(String s) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : s.toCharArray())
            if (c == '"' || c == '\\' || c < 0x20) quoted.append(String.format("\\u%04x", (int) c));
            else quoted.append(c);
        return quoted.append('"').toString();
    }
}
