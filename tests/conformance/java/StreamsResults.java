/*
 * Kafka Streams with exactly-once (v2): counts, windows, sessions and joins of prepared topics. Every result is a text,
 * so that it can be compared with that of another library. Runs until it is stopped.
 *
 * Arguments: bootstrap servers, application id, folder for state, prefix of the topics.
 */
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;

public class StreamsResults {
    static String at(Windowed<String> window) {
        return window.key() + "@" + window.window().start() + "-" + window.window().end();
    }

    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        settings.put(StreamsConfig.MAX_TASK_IDLE_MS_CONFIG, 1000);
        // Results without a partner are looked for with every record, not once a second of the wall clock.
        settings.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");

        String prefix = args[3];
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(prefix + "lines");
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .map((word, count) -> KeyValue.pair(word, word + "=" + count))
            .to(prefix + "words");

        KStream<String, String> values = builder.stream(prefix + "values");
        values.groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(50), Duration.ofMillis(30)))
            .reduce((left, right) -> left + "," + right, Materialized.with(Serdes.String(), Serdes.String()))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream()
            .map((window, found) -> KeyValue.pair(window.key(), at(window) + "=" + found))
            .to(prefix + "closed");
        values.groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(60), Duration.ofMillis(10))
                .advanceBy(Duration.ofMillis(25)))
            .reduce((left, right) -> left + "," + right, Materialized.with(Serdes.String(), Serdes.String()))
            .toStream()
            .map((window, found) -> KeyValue.pair(window.key(), at(window) + "=" + found))
            .to(prefix + "updates");

        KStream<String, String> clicks = builder.stream(prefix + "clicks");
        clicks.groupByKey()
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(20), Duration.ofMillis(41)))
            .reduce((left, right) -> left + "," + right, Materialized.with(Serdes.String(), Serdes.String()))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream()
            .map((window, found) -> KeyValue.pair(window.key(), at(window) + "=" + found))
            .to(prefix + "sessions");

        KStream<String, String> left = builder.stream(prefix + "left");
        KStream<String, String> right = builder.stream(prefix + "right");
        JoinWindows near = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(20), Duration.ofMillis(31));
        ValueJoiner<String, String, String> pair = (one, other) -> one + "|" + other;
        left.join(right, pair, near).to(prefix + "inner");
        left.leftJoin(right, pair, near).to(prefix + "some");
        left.outerJoin(right, pair, near).to(prefix + "all");

        KStream<String, String> orders = builder.stream(prefix + "orders");
        orders.leftJoin(builder.<String, String>table(prefix + "rows"), pair).to(prefix + "enriched");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace(System.out);
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .SHUTDOWN_APPLICATION;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
    }
}
