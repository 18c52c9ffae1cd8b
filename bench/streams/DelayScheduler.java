// A delayed-delivery scheduler as one writes it with Kafka Streams: a RocksDB store ordered by (due, partition, offset), its
// changelog, and a punctuator on the wall clock. Exactly once. The rival of bench/relay.py.
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public class DelayScheduler {
    static Bytes place(long due, int partition, long offset) {
        return Bytes.wrap(ByteBuffer.allocate(20).putLong(due).putInt(partition).putLong(offset).array());
    }

    static class Waiting implements Processor<byte[], byte[], byte[], byte[]> {
        ProcessorContext<byte[], byte[]> context;
        KeyValueStore<Bytes, byte[]> store;
        long delivered = -1;  // all up to here went out: what is deleted below it is not scanned again

        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            store = context.getStateStore("waiting");
            context.schedule(Duration.ofMillis(20), PunctuationType.WALL_CLOCK_TIME, this::deliver);
        }

        public void process(Record<byte[], byte[]> record) {
            var header = record.headers().lastHeader("deliver-after");
            long due = Long.parseLong(new String(header.value(), StandardCharsets.UTF_8));
            var at = context.recordMetadata().get();
            if (due <= delivered) {
                context.forward(new Record<>(null, record.value(), record.timestamp()));
            } else {
                store.put(place(due, at.partition(), at.offset()), record.value());
            }
        }

        void deliver(long now) {
            try (KeyValueIterator<Bytes, byte[]> due = store.range(place(delivered + 1, 0, 0), place(now + 1, 0, 0))) {
                while (due.hasNext()) {
                    KeyValue<Bytes, byte[]> each = due.next();
                    context.forward(new Record<>(null, each.value, now));
                    store.delete(each.key);
                }
            }
            delivered = Math.max(delivered, now);
        }
    }

    public static void main(String[] args) {
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[1]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        config.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        Topology topology = new Topology();
        var bytes = Serdes.ByteArray();
        topology.addSource("in", bytes.deserializer(), bytes.deserializer(), "later");
        topology.addProcessor("wait", Waiting::new, "in");
        topology.addStateStore(
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("waiting"), Serdes.Bytes(), bytes), "wait");
        topology.addSink("out", "out", bytes.serializer(), bytes.serializer(), "wait");
        KafkaStreams streams = new KafkaStreams(topology, config);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(new KafkaStreams.CloseOptions().leaveGroup(true))));
        streams.start();
    }
}
