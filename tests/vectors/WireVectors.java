/*
 * Writes the golden vectors of requests and responses: reads lines "api key, request or response, version, hex" (see
 * README.md), lets Apache Kafka's own classes decode the bytes and encode them again, and prints for each a JSON
 * object with the bytes that Kafka wrote and the fields as Kafka names and prints them.
 */
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.HexFormat;

import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

public class WireVectors {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(parts[0]));
            short version = Short.parseShort(parts[2]);
            ApiMessage message = parts[1].equals("request") ? type.newRequest() : type.newResponse();
            message.read(new ByteBufferAccessor(ByteBuffer.wrap(HexFormat.of().parseHex(parts[3]))), version);
            ByteBuffer buffer = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            String name = message.getClass().getSimpleName().replaceAll("Data$", "");
            Class<?> converter = Class.forName("org.apache.kafka.common.message." + name + "DataJsonConverter");
            Method write = converter.getMethod("write", message.getClass(), short.class);
            System.out.println("{\"message\": \"" + name + "\", \"version\": " + version + ", \"bytes\": \""
                + HexFormat.of().formatHex(bytes) + "\", \"fields\": " + write.invoke(null, message, version) + "}");
        }
    }
}
