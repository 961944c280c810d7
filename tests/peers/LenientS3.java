import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import java.io.PrintStream;
import java.net.URI;
import java.util.List;
import org.gaul.s3proxy.S3Proxy;
import org.gaul.s3proxy.auth.AuthenticationType;
import org.gaul.s3proxy.blobstore.BlobStore;
import org.gaul.s3proxy.blobstore.ForwardingBlobStore;
import org.gaul.s3proxy.blobstore.domain.MultipartUpload;
import org.gaul.s3proxy.nio2blob.TransientNio2BlobStore;
import org.slf4j.LoggerFactory;
import software.amazon.awssdk.services.s3.model.Part;

/**
 * S3Proxy over its own store in memory, without the least size of a part: it asks the store how long the parts are, and one that does not
 * say has any accepted, as many servers do that speak S3 and are not Amazon's.
 *
 * LenientS3 ACCESS-KEY SECRET-KEY prints its port when it listens, and ends with its input.
 */
public final class LenientS3 {
    public static void main(String[] keys) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what the server logs, which by default is everything
        ((Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.WARN);
        BlobStore lenient = new ForwardingBlobStore(new TransientNio2BlobStore()) {
            @Override
            public List<Part> listMultipartUpload(MultipartUpload upload) {
                return super.listMultipartUpload(upload).stream().map(part -> part.toBuilder().size(null).build()).toList();
            }
        };
        S3Proxy proxy = S3Proxy.builder()
                .awsAuthentication(AuthenticationType.AWS_V2_OR_V4, keys[0], keys[1])
                .endpoint(URI.create("http://127.0.0.1:0"))
                .blobStore(lenient)
                .build();
        proxy.start();
        out.println(proxy.getPort());
        while (System.in.read() >= 0) {
            // until whoever started this has ended
        }
        System.exit(0);
    }
}
