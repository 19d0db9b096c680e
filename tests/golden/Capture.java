import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Produces the records of a file with the stock Java producer. Arguments: bootstrap, codec, file. */
public class Capture {
    static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text.substring(1));
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("compression.type", arguments[1]);
        settings.put("enable.idempotence", "false");
        settings.put("linger.ms", "2000");
        settings.put("batch.size", "1000000");
        settings.put("enable.metrics.push", "false");
        ByteArraySerializer raw = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, raw, raw)) {
            for (String line : Files.readAllLines(Path.of(arguments[2]))) {
                String[] fields = line.split(" ");
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    "golden", 0, Long.parseLong(fields[0]), bytes(fields[1]), bytes(fields[2]));
                for (int at = 3; at < fields.length; at += 2)
                    record.headers().add(new RecordHeader(
                        new String(bytes(fields[at]), StandardCharsets.UTF_8), bytes(fields[at + 1])));
                producer.send(record);
            }
            producer.flush();
        }
    }
}
