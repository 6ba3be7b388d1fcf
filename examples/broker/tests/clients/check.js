// Checks the broker with kafkajs: check.js ADDRESS TEST
//
// Every record says its number, so that one that is lost, doubled or out of place is noticed.

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require("kafkajs");

const lz4 = require("lz4js");
const zstd = require("@mongodb-js/zstd");

CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: (encoder) => zstd.compress(encoder.buffer),
  decompress: (buffer) => zstd.decompress(buffer),
});

const [address, test] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR });
const RECORDS = 10000;
const PARTITIONS = 3;

async function produce(topic, compression, options = {}) {
  const producer = kafka.producer(options);
  await producer.connect();
  for (let first = 0; first < RECORDS; first += 1000) {
    const numbers = [...Array(1000).keys()].map((number) => number + first);
    const messages = numbers.map((number) => ({ value: `${number}`, partition: number % PARTITIONS }));
    await producer.send({ topic, compression, messages });
  }
  await producer.disconnect();
}

async function consumeOnceAndInOrder(topic) {
  const consumer = kafka.consumer({ groupId: `group-${topic}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const expected = [...Array(PARTITIONS).keys()];
  let count = 0;
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${count} of ${RECORDS} records came`)), 60000).unref();
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        if (+message.value !== expected[partition]) {
          reject(new Error(`${message.value} in partition ${partition}, not ${expected[partition]}`));
        }
        expected[partition] += PARTITIONS;
        count += 1;
        if (count === RECORDS) resolve();
      },
    });
  });
  await consumer.disconnect();
}

// Prints the records of a topic as a member of a group, until it is killed.
async function member(topic) {
  const groupId = `group-${topic}`;
  const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 500 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => console.log(`${message.value}`) });
  return new Promise(() => {});
}

async function admin() {
  const client = kafka.admin();
  await client.connect();
  await client.createTopics({ topics: [{ topic: "made-by-js", numPartitions: 5 }] });
  const { topics } = await client.fetchTopicMetadata({ topics: ["made-by-js"] });
  if (topics[0].partitions.length !== 5) throw new Error("five partitions were asked for");
  if (!(await client.describeCluster()).clusterId) throw new Error("the cluster has no id");
  await client.deleteTopics({ topics: ["made-by-js"] });
  await client.listGroups();
  await client.disconnect();
}

async function main() {
  if (test === "admin") return admin();
  if (test === "member") return member(process.argv[4]);
  const topic = `kafkajs-${test}`;
  const codecs = { none: "None", gzip: "GZIP", snappy: "Snappy", lz4: "LZ4", zstd: "ZSTD", idempotent: "None" };
  await produce(topic, CompressionTypes[codecs[test]], { idempotent: test === "idempotent" });
  await consumeOnceAndInOrder(topic);
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
