/*
 * Writes the golden vectors of this folder: record batches and records of internal topics as Apache Kafka's own
 * classes encode them. Run with Kafka's jars on the class path (see README.md); prints one JSON object.
 */
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.coordinator.transaction.generated.*;

public class RecordVectors {
    static final List<String> LINES = new ArrayList<>();

    static void add(String name, ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        LINES.add("  \"" + name + "\": \"" + HexFormat.of().formatHex(bytes) + "\"");
    }

    static byte[] utf8(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static Header header(String name, String value) {
        return new RecordHeader(name, utf8(value));
    }

    /** Four records: plain; no key and two headers, one without value; no value; both empty. */
    static ByteBuffer batch(Compression compression, long producerId, short epoch, int sequence, boolean transactional) {
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
            ByteBuffer.allocate(4096), RecordBatch.MAGIC_VALUE_V2, compression, TimestampType.CREATE_TIME, 0L,
            RecordBatch.NO_TIMESTAMP, producerId, epoch, sequence, transactional, false,
            RecordBatch.NO_PARTITION_LEADER_EPOCH, 4096);
        builder.append(1700000000000L, utf8("key"), utf8("value"), new Header[0]);
        builder.append(1700000000005L, null, utf8("ünïcode ✓"), new Header[] {header("trace", "abc"), header("none", null)});
        builder.append(1699999999999L, utf8("gone"), null, new Header[0]);
        builder.append(1700000000100L, utf8(""), utf8(""), new Header[] {header("", "")});
        return builder.build().buffer();
    }

    static ByteBuffer large(Compression compression) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(1 << 20), RecordBatch.MAGIC_VALUE_V2, compression, TimestampType.CREATE_TIME, 0L);
        for (int i = 0; i < 300; i++) {
            builder.append(1700000000000L + i, utf8("key-" + i), utf8(String.valueOf(i % 7).repeat(300)), new Header[0]);
        }
        return builder.build().buffer();
    }

    static void versioned(String name, ApiMessage message, short version) {
        add(name + " v" + version, MessageUtil.toVersionPrefixedByteBuffer(version, message));
    }

    public static void main(String[] args) {
        add("batch none", batch(Compression.NONE, -1L, (short) -1, -1, false));
        add("batch gzip", batch(Compression.gzip().build(), -1L, (short) -1, -1, false));
        add("batch snappy", batch(Compression.snappy().build(), -1L, (short) -1, -1, false));
        add("batch lz4", batch(Compression.lz4().build(), -1L, (short) -1, -1, false));
        add("batch zstd", batch(Compression.zstd().build(), -1L, (short) -1, -1, false));
        add("batch transactional", batch(Compression.NONE, 4000L, (short) 7, 2147483646, true));
        add("large gzip", large(Compression.gzip().build()));
        add("large snappy", large(Compression.snappy().build()));
        add("large lz4", large(Compression.lz4().build()));
        add("large zstd", large(Compression.zstd().build()));
        for (ControlRecordType type : new ControlRecordType[] {ControlRecordType.ABORT, ControlRecordType.COMMIT}) {
            add("marker " + type.name().toLowerCase(), MemoryRecords.withEndTransactionMarker(
                1234L, 1700000000000L, 5, 4000L, (short) 7, new EndTransactionMarker(type, 9)).buffer());
        }

        OffsetCommitKey offsetKey = new OffsetCommitKey().setGroup("group").setTopic("topic").setPartition(3);
        versioned("OffsetCommitKey", offsetKey, (short) 1);
        for (short version = 0; version <= 4; version++) {
            OffsetCommitValue value = new OffsetCommitValue().setOffset(42L).setMetadata("méta").setCommitTimestamp(1700000000000L);
            if (version >= 3) value.setLeaderEpoch(6);
            if (version == 1) value.setExpireTimestamp(1700000099999L);
            if (version >= 4) value.setTopicId(new Uuid(0x0123456789ABCDEFL, 0x1122334455667788L));
            versioned("OffsetCommitValue", value, version);
        }
        versioned("GroupMetadataKey", new GroupMetadataKey().setGroup("group"), (short) 2);
        for (short version = 0; version <= 4; version++) {
            GroupMetadataValue.MemberMetadata member = new GroupMetadataValue.MemberMetadata()
                .setMemberId("member-1").setClientId("client").setClientHost("/127.0.0.1")
                .setSessionTimeout(45000).setSubscription(new byte[] {0, 1, 2}).setAssignment(new byte[] {3});
            if (version >= 1) member.setRebalanceTimeout(300000);
            if (version >= 3) member.setGroupInstanceId("instance");
            GroupMetadataValue value = new GroupMetadataValue().setProtocolType("consumer").setGeneration(8)
                .setProtocol("range").setLeader("member-1").setMembers(List.of(member));
            if (version >= 2) value.setCurrentStateTimestamp(1700000000000L);
            versioned("GroupMetadataValue", value, version);
        }
        versioned("GroupMetadataValue empty", new GroupMetadataValue().setProtocolType("consumer").setGeneration(9)
            .setProtocol(null).setLeader(null).setCurrentStateTimestamp(1L), (short) 3);
        versioned("TransactionLogKey", new TransactionLogKey().setTransactionalId("tx-1"), (short) 0);
        for (short version = 0; version <= 1; version++) {
            TransactionLogValue value = new TransactionLogValue().setProducerId(4000L).setProducerEpoch((short) 7)
                .setTransactionTimeoutMs(60000).setTransactionStatus((byte) 1)
                .setTransactionPartitions(List.of(new TransactionLogValue.PartitionsSchema().setTopic("topic").setPartitionIds(List.of(0, 5))))
                .setTransactionLastUpdateTimestampMs(1700000000000L).setTransactionStartTimestampMs(1699999999000L);
            if (version >= 1) value.setPreviousProducerId(3999L).setNextProducerId(4001L).setClientTransactionVersion((short) 2);
            versioned("TransactionLogValue", value, version);
            versioned("TransactionLogValue empty", new TransactionLogValue().setProducerId(4000L).setProducerEpoch((short) 0)
                .setTransactionTimeoutMs(60000).setTransactionStatus((byte) 0).setTransactionPartitions(null)
                .setTransactionLastUpdateTimestampMs(1700000000000L).setTransactionStartTimestampMs(-1L), version);
        }
        System.out.println("{\n" + String.join(",\n", LINES) + "\n}");
    }
}
