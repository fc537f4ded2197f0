/*
 * The Java clients' whole surface on one broker: what each call gave is printed, line by line, without what differs
 * between any two runs, so that two brokers can be compared.
 *
 * Arguments: bootstrap servers, prefix for names, comma-separated group protocols (classic, consumer).
 */
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaClients {
    static final long THEN = 1_700_000_000_000L;
    static String servers;
    static String prefix;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        prefix = args[1];
        try (Admin admin = Admin.create(properties())) {
            topics(admin);
            records(admin);
            transactions(admin);
            for (String protocol : args[2].split(",")) {
                reading(protocol);
                membership(admin, protocol);
            }
            offsets(admin);
            endings(admin);
        }
    }

    static Properties properties(Object... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("fetch.max.wait.ms", 50);
        for (int i = 0; i < more.length; i += 2) {
            settings.put(more[i], more[i + 1]);
        }
        return settings;
    }

    static void print(String what, Callable<?> call) {
        String shown;
        try {
            shown = String.valueOf(call.call());
        } catch (ExecutionException error) {
            shown = error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            shown = error.getClass().getSimpleName();
        }
        System.out.println(what + ": " + shown.replace(prefix, ""));
    }

    static String name(String name) {
        return prefix + name;
    }

    static void topics(Admin admin) {
        NewTopic plain = new NewTopic(name("plain"), 3, (short) 1);
        NewTopic compact = new NewTopic(name("compact"), Optional.of(1), Optional.empty())
            .configs(Map.of("cleanup.policy", "compact", "retention.ms", "-1"));
        print("create", () -> {
            var made = admin.createTopics(List.of(plain, compact));
            return made.numPartitions(name("plain")).get() + " " + made.replicationFactor(name("compact")).get() + " "
                + made.config(name("compact")).get().get("cleanup.policy").value();
        });
        print("create again", () -> admin.createTopics(List.of(plain)).all().get());
        print("create badly", () -> admin.createTopics(List.of(new NewTopic(name("a b"), 1, (short) 1))).all().get());
        print("create too wide", () -> admin.createTopics(List.of(new NewTopic(name("w"), 1, (short) 3))).all().get());
        print("list", () -> {
            Set<String> names = new TreeSet<>(admin.listTopics().names().get());
            names.removeIf(name -> !name.startsWith(prefix));
            return names;
        });
        print("describe", () -> {
            TopicDescription found = admin.describeTopics(List.of(name("plain"))).allTopicNames().get().get(name("plain"));
            return found.partitions().size() + " " + found.isInternal() + " " + found.partitions().get(0).isr().size();
        });
        print("describe none", () -> admin.describeTopics(List.of(name("none"))).allTopicNames().get());
        print("grow", () -> admin.createPartitions(Map.of(name("plain"), NewPartitions.increaseTo(4))).all().get());
        print("shrink", () -> admin.createPartitions(Map.of(name("plain"), NewPartitions.increaseTo(2))).all().get());
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name("plain"));
        print("alter", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "-1"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get());
        print("alter badly", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "long"), AlterConfigOp.OpType.SET)))).all().get());
        print("configs", () -> {
            for (int look = 0; look < 200; look++) { // Kafka shows a change some time after it took it.
                if ("-1".equals(admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value())) {
                    break;
                }
                Thread.sleep(25);
            }
            var found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            return found.get("retention.ms").value() + " " + found.get("retention.ms").source() + " "
                + found.get("cleanup.policy").value() + " " + found.get("segment.bytes").source();
        });
        print("alter back", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("cleanup.policy", ""), AlterConfigOp.OpType.DELETE)))).all().get());
        print("cluster", () -> admin.describeCluster().nodes().get().size());
    }

    static void records(Admin admin) throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            Properties settings = properties("compression.type", codec, "linger.ms", 20, "acks", "all");
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                for (int i = 0; i < 100; i++) {
                    List<Header> headers = List.of(new RecordHeader("h", new byte[] {1}), new RecordHeader("n", null));
                    sent.add(producer.send(new ProducerRecord<>(name("plain"), i % 4, THEN + i, "key-" + i,
                        i % 10 == 0 ? null : (codec + " " + i).repeat(20), headers)));
                }
            }
            print("sent with " + codec, () -> {
                List<Long> offsets = new ArrayList<>();
                for (Future<RecordMetadata> one : sent) {
                    offsets.add(one.get().offset());
                }
                return offsets;
            });
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties("max.request.size", 5_000_000))) {
            print("too large", () -> producer.send(new ProducerRecord<>(name("plain"), "x".repeat(3_000_000))).get());
            print("partitions", () -> producer.partitionsFor(name("plain")).size());
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties("max.block.ms", 3000))) {
            print("no key on compact", () -> producer.send(new ProducerRecord<>(name("compact"), null, "v")).get());
        }
        TopicPartition first = new TopicPartition(name("plain"), 0);
        for (var spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp(),
                OffsetSpec.forTimestamp(THEN + 50), OffsetSpec.forTimestamp(THEN + 1_000_000))) {
            print("offset " + spec.getClass().getSimpleName(), () -> {
                var found = admin.listOffsets(Map.of(first, spec)).partitionResult(first).get();
                return found.offset() + " " + found.timestamp();
            });
        }
        print("delete records", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(7)))
            .lowWatermarks().get(first).get().lowWatermark());
        print("delete too many", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(70_000))).all().get());
        print("start", () -> admin.listOffsets(Map.of(first, OffsetSpec.earliest())).partitionResult(first).get().offset());
    }

    static void transactions(Admin admin) throws Exception {
        Properties settings = properties("transactional.id", name("txn"), "transaction.timeout.ms", 30_000);
        KafkaProducer<String, String> zombie = new KafkaProducer<>(settings);
        zombie.initTransactions();
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(name("compact"), "zombie", "v")).get();
        print("open", () -> admin.describeTransactions(List.of(name("txn"))).all().get().values().iterator().next().state());
        TopicPartition partition = new TopicPartition(name("compact"), 0);
        print("producers", () -> admin.describeProducers(List.of(partition)).all().get().get(partition).activeProducers().size());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int i = 0; i < 6; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(name("compact"), "k" + i, "committed " + i));
                if (i % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
        print("zombie sends", () -> zombie.send(new ProducerRecord<>(name("compact"), "zombie", "w")).get());
        print("zombie commits", () -> {
            zombie.commitTransaction();
            return null;
        });
        zombie.close();
        print("state", () -> admin.describeTransactions(List.of(name("txn"))).all().get().values().iterator().next().state());
        print("transactions", () -> admin.listTransactions(new ListTransactionsOptions()).all().get().stream()
            .filter(one -> one.transactionalId().startsWith(prefix)).count());
        print("fence", () -> admin.fenceProducers(List.of(name("txn"))).all().get());
        for (String level : List.of("read_committed", "read_uncommitted")) {
            Properties reader = properties("isolation.level", level);
            try (Consumer<String, String> consumer = new KafkaConsumer<>(reader)) {
                consumer.assign(List.of(partition));
                List<String> values = new ArrayList<>();
                long end = consumer.endOffsets(List.of(partition)).get(partition);
                while (consumer.position(partition) < end) {
                    consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.offset() + "=" + record.value()));
                }
                System.out.println(level + " to " + end + ": " + values);
            }
        }
    }

    static void reading(String protocol) {
        Properties settings = properties("group.protocol", protocol, "group.id", name("reader-" + protocol),
            "group.instance.id", "reader-1");
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(name("plain")));
            Map<Integer, List<String>> found = new TreeMap<>();
            int count = 0;
            while (count < 493) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    count++;
                    found.computeIfAbsent(record.partition(), any -> new ArrayList<>()).add(record.offset() + "/"
                        + record.key() + "/" + (record.value() == null ? null : record.value().length()) + "/"
                        + record.timestamp() + "/" + record.headers().toArray().length);
                }
            }
            found.forEach((partition, records) -> System.out.println(protocol + " read " + partition + ": " + records));
            TopicPartition first = new TopicPartition(name("plain"), 0);
            print(protocol + " commit", () -> {
                consumer.commitSync(Map.of(first, new OffsetAndMetadata(42, Optional.of(0), "note")));
                OffsetAndMetadata back = consumer.committed(Set.of(first)).get(first);
                return back.offset() + back.metadata() + back.leaderEpoch();
            });
            print(protocol + " for times", () -> consumer.offsetsForTimes(Map.of(first, THEN + 8)).get(first).offset());
            print(protocol + " bounds", () -> consumer.beginningOffsets(List.of(first)).get(first) + " "
                + consumer.endOffsets(List.of(first)).get(first));
            consumer.seek(first, 100);
            consumer.pause(Set.of(new TopicPartition(name("plain"), 1)));
            print(protocol + " after seek", () -> consumer.poll(Duration.ofSeconds(5)).records(first).get(0).offset());
            print(protocol + " paused", () -> consumer.paused().size());
        }
    }

    /* Members that come and go one after the other, each seeing what it owns. */
    static void membership(Admin admin, String protocol) throws Exception {
        String group = name("members-" + protocol);
        Properties settings = properties("group.protocol", protocol, "group.id", group);
        if (protocol.equals("classic")) {
            settings.put("heartbeat.interval.ms", 100);
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        }
        List<KafkaConsumer<String, String>> members = new ArrayList<>();
        for (int count = 1; count <= 3; count++) {
            KafkaConsumer<String, String> member = new KafkaConsumer<>(settings);
            member.subscribe(List.of(name("plain")), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> gone) { }
                public void onPartitionsAssigned(Collection<TopicPartition> come) { }
            });
            members.add(member);
            System.out.println(protocol + " " + count + " members: " + balanced(members));
        }
        members.remove(0).close();
        System.out.println(protocol + " one left: " + balanced(members));
        print(protocol + " group", () -> {
            // A member tells what it owns with its next heartbeat, so the group is stable a little later.
            for (int round = 0; round < 600; round++) {
                ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                if (found.groupState() == GroupState.STABLE) {
                    return found.groupState() + " " + found.members().size() + " " + found.type();
                }
                members.forEach(member -> member.poll(Duration.ofMillis(20)));
            }
            throw new IllegalStateException("never stable");
        });
        print(protocol + " delete group in use", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        members.forEach(KafkaConsumer::close);
        print(protocol + " empty group", () ->
            admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size());
    }

    /* Polls until the four partitions are owned, each by one, as evenly as can be. */
    static List<Integer> balanced(List<KafkaConsumer<String, String>> members) {
        for (int round = 0; round < 600; round++) {
            List<Integer> sizes = new ArrayList<>();
            Set<TopicPartition> owned = new java.util.HashSet<>();
            for (KafkaConsumer<String, String> member : members) {
                member.poll(Duration.ofMillis(20));
                sizes.add(member.assignment().size());
                owned.addAll(member.assignment());
            }
            Collections.sort(sizes);
            int sum = sizes.stream().mapToInt(Integer::intValue).sum();
            if (owned.size() == 4 && sum == 4 && sizes.get(sizes.size() - 1) - sizes.get(0) <= 1) {
                return sizes;
            }
        }
        return List.of(-1);
    }

    static void offsets(Admin admin) {
        String group = name("by-hand");
        TopicPartition first = new TopicPartition(name("plain"), 0);
        TopicPartition second = new TopicPartition(name("plain"), 1);
        Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
        wanted.put(first, new OffsetAndMetadata(3, "m"));
        wanted.put(second, new OffsetAndMetadata(4));
        print("alter offsets", () -> admin.alterConsumerGroupOffsets(group, wanted).all().get());
        print("offsets", () -> new TreeMap<>(Map.of("a", admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata().get().get(first).offset())));
        print("groups", () -> admin.listGroups().all().get().stream()
            .filter(one -> one.groupId().equals(group)).map(one -> one.groupState() + " " + one.type()).toList());
        print("delete group", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        print("delete no group", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
    }

    static void endings(Admin admin) {
        print("delete", () -> admin.deleteTopics(List.of(name("plain"), name("compact"))).all().get());
        print("delete again", () -> admin.deleteTopics(List.of(name("none"))).all().get());
    }
}
