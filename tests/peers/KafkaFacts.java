import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;

/** What Kafka itself says of settings, and which of them brokers take while they run: a line each, fields divided by tabs. */
public class KafkaFacts {
    public static void main(String[] arguments) {
        Set<String> dynamic = new TreeSet<>(DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS);
        ConfigDef settings = AbstractKafkaConfig.CONFIG_DEF;
        for (ConfigDef.ConfigKey key : settings.configKeys().values()) {
            System.out.println("setting\t" + key.name + "\t" + key.type + "\t" + dynamic.contains(key.name));
        }
    }
}
