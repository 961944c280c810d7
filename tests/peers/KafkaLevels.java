import org.apache.kafka.server.common.Feature;
import org.apache.kafka.server.common.MetadataVersion;

/** What a release of Kafka says of its feature levels: a line each, fields divided by tabs. */
public class KafkaLevels {
    public static void main(String[] arguments) {
        System.out.println("feature\tmetadata.version\t" + MetadataVersion.LATEST_PRODUCTION.featureLevel());
        for (Feature feature : Feature.PRODUCTION_FEATURES) {
            System.out.println("feature\t" + feature.featureName() + "\t" + feature.latestProduction());
        }
        for (MetadataVersion version : MetadataVersion.VERSIONS) {
            System.out.println("level\t" + version.featureLevel() + "\t" + version.partitionRecordVersion());
        }
    }
}
