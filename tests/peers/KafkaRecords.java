import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.MetadataRecordType;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

/**
 * Every kind of metadata record in each of its versions, as Kafka's own schemas write it, twice: with a value in each field, and with null
 * in each that may be null. A line each, divided by tabs: the kind, its number, the version, the fields as JSON, the record in hexadecimal.
 */
public class KafkaRecords {
    private static int next;

    public static void main(String[] arguments) throws Exception {
        for (MetadataRecordType kind : MetadataRecordType.values()) {
            Class<?> message = kind.newMetadataRecord().getClass();
            Schema[] schemas = (Schema[]) message.getField("SCHEMAS").get(null);
            for (short version = kind.lowestSupportedVersion(); version <= kind.highestSupportedVersion(); version++) {
                for (boolean withNulls : new boolean[] {false, true}) {
                    next = 0;
                    Struct record = (Struct) sample(schemas[version], withNulls);
                    ByteBuffer raw = ByteBuffer.allocate(3 + schemas[version].sizeOf(record)); // a byte each: frame, kind, version
                    raw.put((byte) 1).put((byte) kind.id()).put((byte) version);
                    schemas[version].write(raw, record);
                    System.out.println(String.join("\t", kind.name(), "" + kind.id(), "" + version, json(schemas[version], record),
                            HexFormat.of().formatHex(raw.array())));
                }
            }
        }
    }

    /** No two are alike, but booleans. */
    private static Object sample(Type type, boolean withNulls) {
        next++;
        if (withNulls && type.isNullable()) return null;
        if (type instanceof Schema schema) {
            Struct found = new Struct(schema);
            for (BoundField field : schema.fields()) found.set(field, sample(field.def.type, withNulls));
            return found;
        }
        if (type instanceof TaggedFields tagged) {
            Map<Integer, Object> found = new TreeMap<>();
            tagged.fields().forEach((tag, field) -> found.put(tag, sample(field.type, withNulls)));
            return found;
        }
        if (type.arrayElementType().isPresent()) {
            Type element = type.arrayElementType().get();
            return new Object[] {sample(element, withNulls), sample(element, withNulls)};
        }
        if (type == Type.BOOLEAN) return true;
        if (type == Type.INT8) return (byte) -next;
        if (type == Type.INT16) return (short) (-200 * next);
        if (type == Type.UINT16) return 40_000 + next;
        if (type == Type.INT32) return -70_000 * next;
        if (type == Type.INT64) return -5_000_000_000L * next;
        if (type == Type.FLOAT64) return next + 0.5;
        if (type == Type.UUID) return new Uuid(next, next);
        if (type == Type.COMPACT_STRING || type == Type.COMPACT_NULLABLE_STRING) return "text " + next;
        if (type == Type.COMPACT_BYTES) return ByteBuffer.wrap(new byte[] {(byte) next, (byte) 0xff});
        throw new IllegalArgumentException(type.toString());
    }

    private static String json(Type type, Object value) {
        if (value == null) return "null";
        if (value instanceof Struct struct) {
            List<String> found = new ArrayList<>();
            for (BoundField field : struct.schema().fields()) {
                if (field.def.type instanceof TaggedFields tagged)
                    tagged.fields().forEach((tag, each) -> found.add(member(each, ((Map<?, ?>) struct.get(field)).get(tag))));
                else found.add(member(field.def, struct.get(field)));
            }
            return "{" + String.join(",", found) + "}";
        }
        if (value instanceof Object[] values) {
            List<String> found = new ArrayList<>();
            for (Object each : values) found.add(json(type.arrayElementType().get(), each));
            return "[" + String.join(",", found) + "]";
        }
        if (value instanceof ByteBuffer bytes) return "\"" + Base64.getEncoder().encodeToString(bytes.array()) + "\"";
        if (value instanceof String || value instanceof Uuid) return "\"" + value + "\"";
        return value.toString();
    }

    /** Schemas have names like broker_id; the tool prints brokerId. */
    private static String member(Field field, Object value) {
        StringBuilder name = new StringBuilder();
        for (String word : field.name.split("_"))
            name.append(name.isEmpty() ? word : word.substring(0, 1).toUpperCase() + word.substring(1));
        return "\"" + name + "\":" + json(field.type, value);
    }
}
